# SPDX-License-Identifier: Apache-2.0
# A compile error as a test: cmake -D CXX=COMPILER -D FLAGS=LIST -D SOURCE=FILE [-D TELLS=WHERE] -P expect_error.cmake
#   1. With -DSHARDPLAN_FIXED the file must compile: it is the one wrong line that fails, not a missing include.
#   2. Without it must not, and each `// expect-error: REGEX` of the file must match what the compiler says; and each
#      `// expect-told: REGEX` the end of an error line, when TELLS is MESSAGE: static_assert takes an object as message;
#      and each `// expect-said: REGEX` then too, or when TELLS is ARGUMENT: text that is a template argument is printed.
#   3. There must be as many error lines as `// expect-errors: N` says, or `N to M`: no follow-up noise.
execute_process(COMMAND ${CXX} ${FLAGS} -DSHARDPLAN_FIXED ${SOURCE} RESULT_VARIABLE rc ERROR_VARIABLE err)
if(NOT rc EQUAL 0)
  message(FATAL_ERROR "the corrected variant must compile, but:\n${err}")
endif()
execute_process(COMMAND ${CXX} ${FLAGS} ${SOURCE} RESULT_VARIABLE rc ERROR_VARIABLE err)
if(rc EQUAL 0)
  message(FATAL_ERROR "compiled, but must not")
endif()
string(REGEX REPLACE "([0-9])L([>,])" "\\1\\2" err "${err}")  # nvcc: num_heads<32L>

# Each `// KIND: REGEX` of the file must match, between the two given ones.
function(expect kind before after)
  file(STRINGS ${SOURCE} lines REGEX "// ${kind}: ")
  foreach(line IN LISTS lines)
    string(REGEX REPLACE ".*// ${kind}: *" "" line "${line}")
    if(NOT err MATCHES "${before}${line}${after}")
      message(FATAL_ERROR "expected /${before}${line}${after}/ in:\n${err}")
    endif()
  endforeach()
  if(kind STREQUAL expect-error AND NOT lines)
    message(FATAL_ERROR "no // expect-error: line")
  endif()
endfunction()
expect(expect-error "" "")
if(TELLS STREQUAL MESSAGE)
  expect(expect-told " error: [^\n]*" "\n")
endif()
if(TELLS)
  expect(expect-said "" "")
endif()

file(STRINGS ${SOURCE} budget REGEX "// expect-errors: [0-9]+")
if(NOT budget MATCHES "// expect-errors: ([0-9]+)( to ([0-9]+))?")
  message(FATAL_ERROR "no // expect-errors: N line")
endif()
set(least ${CMAKE_MATCH_1})
set(most ${CMAKE_MATCH_1})
if(CMAKE_MATCH_3)
  set(most ${CMAKE_MATCH_3})
endif()
string(REGEX MATCHALL " error: " errors "${err}")
list(LENGTH errors count)
if(count LESS least OR count GREATER most)
  message(FATAL_ERROR "${count} error lines, where ${least} to ${most} are right:\n${err}")
endif()
message(STATUS "ok, ${count} error line(s)")

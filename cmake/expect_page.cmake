# SPDX-License-Identifier: Apache-2.0
# A page that a program prints: cmake -D PROGRAM=FILE -D PAGE=FILE [-D WRITE=ON] -P expect_page.cmake
# compares the page with what the program prints, or writes it.
execute_process(COMMAND ${PROGRAM} RESULT_VARIABLE result OUTPUT_VARIABLE printed)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "${PROGRAM}: exit ${result}")
endif()
if(WRITE)
  file(WRITE ${PAGE} "${printed}")
else()
  file(READ ${PAGE} page)
  if(NOT page STREQUAL printed)
    message(FATAL_ERROR "${PAGE} is not what ${PROGRAM} prints: build the target rules_page")
  endif()
endif()

# SPDX-License-Identifier: Apache-2.0
# Finds NCCL: where NCCL_ROOT or CMAKE_PREFIX_PATH says, in the system, or in a CUDA toolkit that was found before.
# Sets NCCL_FOUND, NCCL_VERSION, NCCL_INCLUDE_DIR and NCCL_LIBRARY, and defines the target NCCL::nccl.
find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
# Header and library belong together: first what lies beside the header.
cmake_path(GET NCCL_INCLUDE_DIR PARENT_PATH NCCL_prefix)
find_library(NCCL_LIBRARY nccl HINTS ${NCCL_prefix} ${CUDAToolkit_LIBRARY_DIR} PATH_SUFFIXES lib64 lib)

unset(NCCL_VERSION)
if(NCCL_INCLUDE_DIR)
  file(STRINGS ${NCCL_INCLUDE_DIR}/nccl.h NCCL_version REGEX "#define NCCL_(MAJOR|MINOR|PATCH) +[0-9]+")
  list(TRANSFORM NCCL_version REPLACE "[^0-9]" "")
  list(JOIN NCCL_version "." NCCL_VERSION)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(NCCL REQUIRED_VARS NCCL_LIBRARY NCCL_INCLUDE_DIR VERSION_VAR NCCL_VERSION)
mark_as_advanced(NCCL_INCLUDE_DIR NCCL_LIBRARY)

if(NCCL_FOUND AND NOT TARGET NCCL::nccl)
  add_library(NCCL::nccl UNKNOWN IMPORTED)
  set_target_properties(NCCL::nccl PROPERTIES
    IMPORTED_LOCATION ${NCCL_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${NCCL_INCLUDE_DIR})
endif()

# SPDX-License-Identifier: Apache-2.0
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
pkg_check_modules(LIBUV REQUIRED IMPORTED_TARGET libuv>=1.40)
# The C library is msgpack-c from 6.0 on, msgpack before.
pkg_search_module(MSGPACK REQUIRED IMPORTED_TARGET msgpack-c msgpack>=3)
# Version 6.0 says "-Iinclude" in its pkg-config file.
get_target_property(includes PkgConfig::MSGPACK INTERFACE_INCLUDE_DIRECTORIES)
if(includes STREQUAL "include")
  set_target_properties(PkgConfig::MSGPACK PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES ${MSGPACK_PREFIX}/include)
endif()
# Builds for ThreadSanitizer and for fuzzing have no Criterion tests (tests/CMakeLists.txt).
if(CAID_TESTS AND NOT CAID_FUZZ AND NOT CAID_SANITIZE MATCHES "thread")
  pkg_check_modules(CRITERION REQUIRED IMPORTED_TARGET criterion>=2.3)
endif()
if(CAID_PYTHON)
  find_package(Python 3.9 REQUIRED COMPONENTS Interpreter Development.Module)
endif()
if(NOT CAID_MAN STREQUAL "OFF")
  find_program(SCDOC scdoc)
  if(CAID_MAN STREQUAL "ON" AND NOT SCDOC)
    message(FATAL_ERROR "CAID_MAN=ON needs scdoc")
  elseif(NOT SCDOC)
    message(NOTICE "caid: the man pages are left out: no scdoc here")
  endif()
endif()

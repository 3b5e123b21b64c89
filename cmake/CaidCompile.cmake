# SPDX-License-Identifier: Apache-2.0
# Language, warnings and hardening for every target of the tree.
include(CheckCCompilerFlag)

set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS ON) # statement expressions, cleanup attributes
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo)
endif()

# An assertion that is wrong has found a bug: it stays on in every build.
foreach(config RELEASE RELWITHDEBINFO MINSIZEREL)
  string(REPLACE "-DNDEBUG" "" CMAKE_C_FLAGS_${config} "${CMAKE_C_FLAGS_${config}}")
endforeach()

add_compile_definitions(_GNU_SOURCE CAID_VERSION="${PROJECT_VERSION}")
add_compile_options(
  -Wall -Wextra -Wshadow -Wformat=2 -Wvla -Wundef -Wstrict-prototypes -Wmissing-prototypes
  -Wcast-qual -Wconversion -Wno-sign-conversion)
if(CAID_WERROR)
  add_compile_options(-Werror)
endif()

# Hardening, each flag where the compiler has it. A sanitizer replaces _FORTIFY_SOURCE.
set(hardening -fstack-protector-strong -fstack-clash-protection -fcf-protection=full
  -fstrict-flex-arrays=3)
if(NOT CAID_SANITIZE AND NOT CMAKE_BUILD_TYPE STREQUAL "Debug")
  add_compile_options(-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3)
endif()
foreach(flag ${hardening})
  string(MAKE_C_IDENTIFIER "HAVE${flag}" have)
  check_c_compiler_flag(${flag} ${have})
  if(${have})
    add_compile_options(${flag})
  endif()
endforeach()
add_link_options(-Wl,-z,relro,-z,now)
if(CAID_SANITIZE)
  add_compile_options(-fsanitize=${CAID_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${CAID_SANITIZE})
elseif(NOT CAID_FUZZ)
  add_link_options(-Wl,-z,defs)
endif()
if(CAID_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()
# Programs of the build tree find its libraries relative to themselves: the tree can be moved.
set(CMAKE_BUILD_RPATH_USE_ORIGIN ON)
include(CheckPIESupported)
check_pie_supported(LANGUAGES C)

# SPDX-License-Identifier: Apache-2.0
# test_abi: driver/cuda_abi.h held against a real cuda.h, where one is found: a toolkit, or the
# headers that come with the Python packages of the CUDA runtime.
file(GLOB toolkits /usr/local/cuda*/include)
list(SORT toolkits ORDER DESCENDING)
set(wheels)
if(Python_SITEARCH)
  file(GLOB wheels ${Python_SITEARCH}/nvidia/*/include)
endif()
find_path(CAID_CUDA_INCLUDE cudaTypedefs.h
  HINTS ENV CUDA_HOME ENV CUDA_PATH ENV CUDAToolkit_ROOT ${CUDAToolkit_INCLUDE_DIRS}
  PATHS /usr/local/cuda/include ${toolkits} ${wheels}
  PATH_SUFFIXES include)
if(NOT CAID_CUDA_INCLUDE OR NOT EXISTS ${CAID_CUDA_INCLUDE}/cuda.h)
  message(STATUS "No cuda.h found: driver/cuda_abi.h is not held against one (set CUDA_HOME)")
  return()
endif()
message(STATUS "driver/cuda_abi.h is held against ${CAID_CUDA_INCLUDE}/cuda.h")

# Every value that the header and results.def name, so that none can be left out of the test. An
# older cuda.h does not know them all yet.
set(abi_sources ${PROJECT_SOURCE_DIR}/driver/cuda_abi.h ${PROJECT_SOURCE_DIR}/driver/results.def)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${abi_sources})
set(lines)
foreach(source ${abi_sources})
  file(STRINGS ${source} found
    REGEX "^(    CU[A-Z0-9_a-z]+ = |#define CU[A-Z0-9_]+ |RESULT\\(CUDA_)")
  list(APPEND lines ${found})
endforeach()
file(READ ${CAID_CUDA_INCLUDE}/cuda.h real)
set(values "")
set(n_unknown 0)
foreach(line IN LISTS lines)
  string(REGEX MATCH "CU[A-Z0-9_a-z]+" name "${line}")
  string(REGEX MATCH "[^A-Za-z0-9_]${name}[^A-Za-z0-9_]" known "${real}")
  if(known)
    string(APPEND values "VALUE(${name})\n")
  else()
    math(EXPR n_unknown "${n_unknown} + 1")
  endif()
endforeach()
if(n_unknown)
  message(STATUS "cuda_abi.h: ${n_unknown} values are newer than this cuda.h and not compared")
endif()
file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/abi_values.def CONTENT "${values}" @ONLY)

# Two objects, because the two headers cannot meet in one.
add_library(abi-own OBJECT abi_rows.c)
target_include_directories(abi-own PRIVATE ${PROJECT_SOURCE_DIR}/driver)
target_compile_definitions(abi-own PRIVATE ABI_ROWS=abi_own)
add_library(abi-real OBJECT abi_rows.c)
target_include_directories(abi-real SYSTEM PRIVATE ${CAID_CUDA_INCLUDE})
target_include_directories(abi-real PRIVATE ${PROJECT_SOURCE_DIR}/driver)
target_compile_definitions(abi-real PRIVATE ABI_ROWS=abi_real ABI_REAL)
foreach(object abi-own abi-real)
  target_include_directories(${object} PRIVATE ${CMAKE_CURRENT_BINARY_DIR})
endforeach()
caid_test(test_abi test_abi.c $<TARGET_OBJECTS:abi-own> $<TARGET_OBJECTS:abi-real>)

# SPDX-License-Identifier: Apache-2.0
# How tests, benchmarks and fuzzers are declared. All of them land in folders of their own under
# the build: tests/, bench/, fuzz/.

if(NOT Python_Interpreter_FOUND) # CAID_PYTHON=OFF: tests are driven by Python all the same
  find_package(Python 3.9 REQUIRED COMPONENTS Interpreter)
endif()

set(CAID_TEST_TIMEOUT 480 CACHE STRING "Seconds that a test may take: what only a hang takes, beside others on a loaded machine")

# What every test finds in its environment: the software driver and where the build is.
set(CAID_TEST_ENV "CAID_CUDA_DRIVER=soft" "CAID_BUILD_DIR=${CMAKE_BINARY_DIR}"
  "CAID_TEST_TIMEOUT=${CAID_TEST_TIMEOUT}")

# The interpreter is not built with AddressSanitizer, so its runtime has to come first, and what
# CPython itself never frees would drown the report.
set(CAID_PYTEST_ENV "PYTHONPATH=${CMAKE_BINARY_DIR}/python" "PYTHONDONTWRITEBYTECODE=1"
  "HYPOTHESIS_STORAGE_DIRECTORY=${CMAKE_BINARY_DIR}/hypothesis")
if(CAID_SANITIZE MATCHES "address")
  execute_process(COMMAND ${CMAKE_C_COMPILER} -print-file-name=libasan.so
    OUTPUT_VARIABLE libasan OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  file(REAL_PATH ${libasan} libasan)
  list(APPEND CAID_PYTEST_ENV "LD_PRELOAD=${libasan}" "ASAN_OPTIONS=detect_leaks=0"
    "PYTHONMALLOC=malloc")
endif()

# _caid_add_test(NAME GPU ENVIRONMENT COMMAND...): the test, and where GPU is true its twin
# NAME.gpu, the same body on the real driver: run by `./dev gpu-test`, which is
# `ctest -C gpu -L gpu`; a plain ctest leaves it out.
# Each test has a software device of its own: in the memory figures of the default one there would
# be what any other process holds.
function(_caid_add_test name gpu environment)
  string(UUID uuid NAMESPACE 6ba7b811-9dad-11d1-80b4-00c04fd430c8 NAME ${CMAKE_BINARY_DIR}/${name}
    TYPE SHA1)
  list(APPEND environment "CAID_SOFTCUDA_UUID=GPU-${uuid}")
  add_test(NAME ${name} COMMAND ${ARGN})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${CAID_TEST_TIMEOUT} ENVIRONMENT "${environment}"
    ENVIRONMENT_MODIFICATION "CUDA_VISIBLE_DEVICES=unset:") # the software driver heeds it
  if(gpu)
    _caid_add_gpu_test(${name}.gpu "${environment}" ${ARGN})
  endif()
endfunction()

function(_caid_add_gpu_test name environment)
  list(TRANSFORM environment REPLACE "^CAID_CUDA_DRIVER=.*" "CAID_CUDA_DRIVER=cuda")
  add_test(NAME ${name} COMMAND ${ARGN} CONFIGURATIONS gpu)
  set_tests_properties(${name} PROPERTIES TIMEOUT 600 ENVIRONMENT "${environment}"
    LABELS gpu RESOURCE_LOCK gpu)
endfunction()

# What sources that are compiled for Criterion need.
function(_caid_set_up_test name libs)
  # Criterion's own macros are not clean under our warnings.
  target_compile_options(${name} PRIVATE -Wno-conversion -Wno-cast-qual -Wno-shadow)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(${name} PUBLIC ${libs} PkgConfig::CRITERION Threads::Threads)
endfunction()

# caid_test_library(NAME sources... [LIBS ...]): what several tests have in common, compiled once.
function(caid_test_library name)
  cmake_parse_arguments(ARG "" "" "LIBS" ${ARGN})
  add_library(${name} STATIC ${ARG_UNPARSED_ARGUMENTS})
  _caid_set_up_test(${name} "${ARG_LIBS}")
endfunction()

# caid_test(NAME sources... [LIBS ...] [SERIAL] [GPU]): a Criterion program. SERIAL: its bodies run
# one at a time, and no other test beside them.
function(caid_test name)
  cmake_parse_arguments(ARG "SERIAL;GPU" "" "LIBS" ${ARGN})
  add_executable(${name} ${ARG_UNPARSED_ARGUMENTS})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  _caid_set_up_test(${name} "${ARG_LIBS}")
  if(ARG_SERIAL)
    _caid_add_test(${name} "${ARG_GPU}" "${CAID_TEST_ENV}" ${name} --jobs=1)
    set_tests_properties(${name} PROPERTIES RUN_SERIAL TRUE)
  else()
    _caid_add_test(${name} "${ARG_GPU}" "${CAID_TEST_ENV}" ${name})
  endif()
endfunction()

# caid_test_nomem(NAME sources... [LIBS ...]): the same, with allocations that fail (tests/nomem.h).
function(caid_test_nomem name)
  caid_test(${name} ${PROJECT_SOURCE_DIR}/tests/nomem.c ${ARGN})
  foreach(function malloc calloc realloc reallocarray strdup strndup)
    target_link_options(${name} PRIVATE -Wl,--wrap=${function})
  endforeach()
endfunction()

# caid_pytest(NAME paths or pytest options... [GPU | GPU_ONLY]): Python tests, run by the build's
# interpreter. What can be tested nowhere here (a module is missing: pytest ends with 5) shows as
# skipped.
function(caid_pytest name)
  cmake_parse_arguments(ARG "GPU;GPU_ONLY" "" "" ${ARGN})
  list(TRANSFORM ARG_UNPARSED_ARGUMENTS REPLACE "^([^-/].*)" "${CMAKE_CURRENT_SOURCE_DIR}/\\1")
  set(command ${Python_EXECUTABLE} -X dev ${PROJECT_SOURCE_DIR}/tests/python/run.py -q -rs -p no:cacheprovider
    ${ARG_UNPARSED_ARGUMENTS})
  set(environment ${CAID_TEST_ENV} ${CAID_PYTEST_ENV})
  if(ARG_GPU_ONLY)
    _caid_add_gpu_test(${name} "${environment}" ${command})
  else()
    _caid_add_test(${name} "${ARG_GPU}" "${environment}" ${command})
    set_tests_properties(${name} PROPERTIES SKIP_RETURN_CODE 5)
  endif()
endfunction()

# caid_bench(NAME sources... [LIBS ...]): a benchmark program, run by `./dev bench`, never by ctest.
function(caid_bench name)
  cmake_parse_arguments(ARG "" "" "LIBS" ${ARGN})
  add_executable(${name} ${ARG_UNPARSED_ARGUMENTS})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bench)
  target_link_libraries(${name} PRIVATE ${ARG_LIBS} Threads::Threads)
endfunction()

# caid_fuzzer(NAME CORPUS sources... [LIBS ...]): a libFuzzer target. With CAID_FUZZ it becomes
# fuzz/NAME; in every other build the same function replays the folder CORPUS as a test.
function(caid_fuzzer name corpus)
  cmake_parse_arguments(ARG "" "" "LIBS" ${ARGN})
  add_executable(${name} ${ARG_UNPARSED_ARGUMENTS})
  target_link_libraries(${name} PRIVATE ${ARG_LIBS})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  if(CAID_FUZZ)
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/fuzz)
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
    file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/fuzz)
    file(CREATE_LINK ${CMAKE_CURRENT_SOURCE_DIR}/${corpus} ${CMAKE_BINARY_DIR}/fuzz/${name}.corpus
      SYMBOLIC)
  else()
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
    target_sources(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests/tools/replay.c)
    add_test(NAME ${name} COMMAND ${name} ${CMAKE_CURRENT_SOURCE_DIR}/${corpus})
    set_tests_properties(${name} PROPERTIES TIMEOUT ${CAID_TEST_TIMEOUT} ENVIRONMENT "${CAID_TEST_ENV}")
  endif()
endfunction()

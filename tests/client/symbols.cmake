# SPDX-License-Identifier: Apache-2.0
# cmake -DNM=... -DLIBRARY=... -DHEADERS=... (a folder) -DSYMBOLS=... -P symbols.cmake: fails unless
# the three name the same functions.
function(sorted ret)
  list(SORT ARGN)
  list(REMOVE_DUPLICATES ARGN)
  set(${ret} "${ARGN}" PARENT_SCOPE)
endfunction()

execute_process(COMMAND ${NM} -D --defined-only ${LIBRARY}
  OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)
string(REGEX REPLACE "[^\n]* A CAID_2[^\n]*\n" "" text "${text}") # the version's own symbol
string(REGEX REPLACE "[0-9a-f]* [A-Za-z] ([A-Za-z0-9_.]+)[^\n]*\n" "\\1;" exported "${text}")
sorted(exported ${exported})

file(READ ${SYMBOLS} text)
string(REGEX MATCHALL "caid_[a-z_]+" listed "${text}")
sorted(listed ${listed})

set(text "")
file(GLOB headers ${HEADERS}/*.h)
foreach(header ${headers})
  file(READ ${header} more)
  string(APPEND text "${more}")
endforeach()
string(REGEX REPLACE "/\\*([^*]|\\*+[^*/])*\\*+/" "" text "${text}")
string(REGEX MATCHALL "caid_[a-z_]+\\(" declarations "${text}")
string(REPLACE "(" "" declared "${declarations}")
sorted(declared ${declared})

if(NOT listed)
  message(FATAL_ERROR "${SYMBOLS} lists nothing")
endif()
foreach(other exported declared)
  if(NOT "${listed}" STREQUAL "${${other}}")
    message(FATAL_ERROR "caid.syms lists\n  ${listed}\n${other} are\n  ${${other}}")
  endif()
endforeach()

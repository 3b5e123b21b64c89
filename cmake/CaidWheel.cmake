# SPDX-License-Identifier: Apache-2.0
# What a wheel holds besides the Python modules, which pyproject.toml names: the extension, the
# module that the build makes, and what the package finds inside itself. Nothing of an ordinary installation is in this component.
install(TARGETS _caid LIBRARY DESTINATION caid COMPONENT wheel)
install(FILES ${CAID_PYTHON_DIR}/_answers.py DESTINATION caid COMPONENT wheel)
install(TARGETS caid-softcuda LIBRARY DESTINATION caid COMPONENT wheel NAMELINK_SKIP)
install(TARGETS caid caid-keeper caidctl RUNTIME DESTINATION caid/bin COMPONENT wheel)
# In the environment's share/, where man(1) and bash look beside a program of $PATH.
foreach(page IN LISTS CAID_MAN_PAGES)
  string(REGEX REPLACE ".*\\." "" section ${page})
  install(FILES ${page} DESTINATION ${SKBUILD_DATA_DIR}/share/man/man${section} COMPONENT wheel)
endforeach()
set(tools ${PROJECT_SOURCE_DIR}/client/tools)
install(FILES ${tools}/caidctl.bash RENAME caidctl COMPONENT wheel
  DESTINATION ${SKBUILD_DATA_DIR}/share/bash-completion/completions)
install(FILES ${tools}/caidctl.zsh RENAME _caidctl COMPONENT wheel
  DESTINATION ${SKBUILD_DATA_DIR}/share/zsh/site-functions)
install(FILES ${tools}/caidctl.fish COMPONENT wheel DESTINATION ${SKBUILD_DATA_DIR}/share/fish/vendor_completions.d)

# SPDX-License-Identifier: Apache-2.0
# What a wheel holds besides the Python modules, which pyproject.toml names: the extension, the
# module that the build makes, and what the package finds inside itself. Nothing of an ordinary installation is in this component.
install(TARGETS _caid LIBRARY DESTINATION caid COMPONENT wheel)
install(FILES ${CAID_PYTHON_DIR}/_answers.py DESTINATION caid COMPONENT wheel)
install(TARGETS caid-softcuda LIBRARY DESTINATION caid COMPONENT wheel NAMELINK_SKIP)
install(TARGETS caid caidctl RUNTIME DESTINATION caid/bin COMPONENT wheel)

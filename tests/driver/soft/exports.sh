#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# exports.sh NM LIBRARY FOLDER: the library exports what the table of entry points in FOLDER names.
set -eu
nm=$1 library=$2 folder=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$nm" -D --defined-only "$library" | awk '{ print $NF }' | sort >"$work/library"
{
    tr '\n' ' ' <"$folder/exports.def" | grep -oE '\b(EXPORT|EARLY|SAME)\(\w+,' | sed 's/.*(//; s/,//'
    tr '\n' ' ' <"$folder/exports.def" | grep -oE '\b(EXPORT|SAME)_PT\(\w+,( *"\w+",)? *[0-9]+, *\w+' |
        sed -E 's/.*\((\w+),.* (\w+)$/\1\n\1\2/'
    grep -oE '^NVML\(\w+' "$folder/exports.def" | sed 's/NVML(//'
    echo nvmlErrorString
    echo caid_softcuda_control
    echo caid_softcuda_state
    echo caid_softcuda_version
} | grep -vE '^(symbol|symbol##suffix)$' | sort >"$work/table"

diff -u "$work/table" "$work/library"
# Callers that look for "<name>_v2" first would take these for another ABI.
for name in cuCtxGetDevice_v2 cuCtxSynchronize_v2; do
    if grep -qx "$name" "$work/library"; then
        echo "$name must not be exported"
        exit 1
    fi
done
test "$(wc -l <"$work/table")" -gt 100

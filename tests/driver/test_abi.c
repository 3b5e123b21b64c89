/* SPDX-License-Identifier: Apache-2.0 */
/* driver/cuda_abi.h agrees with a real cuda.h; see abi_rows.c and abi.cmake. */
#include "abi_rows.h"

#include <string.h>

#include "caid_test.h"

static const struct abi_row *
row_find(const struct abi_row *rows, const char *name)
{
    while (rows->name && strcmp(rows->name, name) != 0)
        rows++;
    return rows->name ? rows : NULL;
}

CAID_TEST(abi, numbers_sizes_and_offsets_agree_with_cuda_h)
{
    int n_compared = 0;
    for (const struct abi_row *real = abi_real; real->name; real++, n_compared++) {
        const struct abi_row *own = row_find(abi_own, real->name);
        cr_assert_not_null(own, "%s is not in cuda_abi.h", real->name);
        cr_expect_eq(own->value, real->value, "%s: %lld, and in cuda.h %lld", real->name,
                     own->value, real->value);
    }
    /* A list that came out empty would compare nothing. */
    cr_assert_gt(n_compared, 150, "%d compared", n_compared);
}

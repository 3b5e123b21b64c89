/* SPDX-License-Identifier: Apache-2.0 */
/* The environment, checked. */
#include "soft.h"

#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#define MAX_MEMORY (UINT64_C(1) << 46)

/* The same in every process and for every user, so that all of them mean the same device. */
static const CUuuid default_uuid = {
    .bytes = {0x63, 0x61, 0x69, 0x64, 0x73, 0x6f, 0x66, 0x74, 0x63, 0x75, 0x64, 0x61, 0, 0, 0,
              1},
};

int
settings_complain(const char *name, const char *value, const char *want)
{
    fprintf(stderr, "libcaid-softcuda: %s=\"%s\": expected %s\n", name, value, want);
    return -EINVAL;
}

int
settings_number(const char *text, uint64_t max, const char **suffix, uint64_t *ret)
{
    char *end;
    if (!isdigit((unsigned char)*text))
        return -EINVAL;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno != 0 || value > max || (!suffix && *end))
        return -EINVAL;
    if (suffix)
        *suffix = end;
    *ret = value;
    return 0;
}

static int
read_number(const char *name, uint64_t max, uint64_t *value)
{
    const char *text = getenv(name);
    if (!text || !*text)
        return 0;
    if (settings_number(text, max, NULL, value) == 0)
        return 1;
    char want[64];
    snprintf(want, sizeof(want), "a number from 0 to %llu", (unsigned long long)max);
    return settings_complain(name, text, want);
}

static int
parse_size(const char *text, void *ret)
{
    static const char units[] = "KMGT";
    const char *suffix;
    uint64_t value;
    if (settings_number(text, MAX_MEMORY, &suffix, &value) < 0)
        return -EINVAL;
    if (*suffix) {
        const char *unit = strchr(units, toupper((unsigned char)*suffix));
        if (!unit || suffix[1])
            return -EINVAL;
        unsigned int shift = 10 * (unsigned int)(unit - units + 1);
        if (value > MAX_MEMORY >> shift)
            return -EINVAL;
        value <<= shift;
    }
    if (value == 0 || value % SOFT_GRANULARITY != 0)
        return -EINVAL;
    *(uint64_t *)ret = value;
    return 0;
}

static int
hex_digit(char c)
{
    static const char digits[] = "0123456789abcdef";
    const char *at = c ? strchr(digits, tolower((unsigned char)c)) : NULL;
    return at ? (int)(at - digits) : -EINVAL;
}

static int
parse_uuid(const char *text, void *ret)
{
    CUuuid uuid;
    if (strncmp(text, "GPU-", 4) == 0)
        text += 4;
    for (size_t i = 0; i < sizeof(uuid.bytes); i++) {
        if ((i == 4 || i == 6 || i == 8 || i == 10) && *text++ != '-')
            return -EINVAL;
        int high = hex_digit(*text++);
        int low = high < 0 ? high : hex_digit(*text++);
        if (low < 0)
            return -EINVAL;
        uuid.bytes[i] = (char)(high << 4 | low);
    }
    if (*text)
        return -EINVAL;
    *(CUuuid *)ret = uuid;
    return 0;
}

static int
parse_name(const char *text, void *ret)
{
    if (strlen(text) >= sizeof(((struct settings *)0)->name))
        return -EINVAL;
    strcpy(ret, text);
    return 0;
}

/* The place on the bus identifies a device, and cannot be set. */
static bool
attribute_is_settable(uint64_t attribute)
{
    return attribute >= CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK &&
           attribute != CU_DEVICE_ATTRIBUTE_PCI_BUS_ID &&
           attribute != CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID;
}

/* "NUMBER=VALUE" at the start of *text, which is moved behind it and a comma. */
static int
take_attribute(const char **text, int *attributes)
{
    const char *suffix;
    char *end;
    uint64_t attribute;
    if (settings_number(*text, N_ATTRIBUTES - 1, &suffix, &attribute) < 0 ||
        !attribute_is_settable(attribute) || *suffix != '=')
        return -EINVAL;
    const char *value = suffix + 1;
    if (!isdigit((unsigned char)*value) && *value != '-')
        return -EINVAL;
    errno = 0;
    long number = strtol(value, &end, 10);
    if (errno != 0 || end == value || number < INT_MIN || number > INT_MAX ||
        (*end && *end != ',') || (*end == ',' && !end[1]))
        return -EINVAL;
    attributes[attribute] = (int)number;
    *text = *end ? end + 1 : end;
    return 0;
}

static int
parse_attributes(const char *text, void *ret)
{
    while (*text)
        if (take_attribute(&text, ret) < 0)
            return -EINVAL;
    return 0;
}

/* A variable that is not set changes nothing. */
static int
read_parsed(const char *name, int (*parse)(const char *text, void *ret), void *ret,
            const char *want)
{
    const char *text = getenv(name);
    return !text || !*text || parse(text, ret) == 0 ? 0 : settings_complain(name, text, want);
}

int
settings_read(struct settings *ret)
{
    struct settings settings = {.memory = UINT64_C(4) << 30,
                                .uuid = default_uuid,
                                .name = "caid software device"};
    uint64_t n_devices = 1, delay_us = 0, seed = 0, persistence = 1;
    int jitter;
    memcpy(settings.attributes, attribute_defaults, sizeof(settings.attributes));
    if (read_number("CAID_SOFTCUDA_DEVICES", SOFT_MAX_DEVICES, &n_devices) < 0 ||
        read_number("CAID_SOFTCUDA_DELAY_US", MAX_DELAY_US, &delay_us) < 0 ||
        (jitter = read_number("CAID_SOFTCUDA_JITTER_SEED", UINT64_MAX, &seed)) < 0 ||
        read_number("CAID_SOFTCUDA_PERSISTENCE", 1, &persistence) < 0 ||
        read_parsed("CAID_SOFTCUDA_MEMORY", parse_size, &settings.memory,
                    "bytes, a multiple of 2M, up to 64T") < 0 ||
        read_parsed("CAID_SOFTCUDA_UUID", parse_uuid, &settings.uuid,
                    "a UUID such as GPU-01234567-89ab-cdef-0123-456789abcdef") < 0 ||
        read_parsed("CAID_SOFTCUDA_ATTRIBUTES", parse_attributes, settings.attributes,
                    "CUdevice_attribute=VALUE, separated by commas") < 0 ||
        read_parsed("CAID_SOFTCUDA_NAME", parse_name, settings.name, "at most 127 bytes") < 0)
        return -EINVAL;
    settings.n_devices = (int)n_devices;
    settings.delay_ns = delay_us * 1000;
    settings.jitter = jitter > 0;
    settings.jitter_seed = seed;
    settings.persistence = persistence;
    *ret = settings;
    return 0;
}

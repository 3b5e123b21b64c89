/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The protocol's fixed limits: both sides compile them in, docs/PROTOCOL.md lists them. Limits
 * that an administrator sets are the daemon's (daemon/config.h). Not called limits.h, which
 * would hide the C library's header from all who have proto/ in their include path.
 */
#pragma once

#define PROTO_VERSION_MIN 1
#define PROTO_VERSION_MAX 1

#define PROTO_PACKET_MAX 65536 /* bytes in one packet, both ways */
#define PROTO_DEPTH_MAX  8     /* nesting of arrays and maps in a packet */
#define PROTO_TAIL_MAX   16384 /* bytes behind the slots of a page */
#define PROTO_ITEMS_MAX  16384 /* MessagePack objects in a packet */
#define PROTO_MAP_MAX    64    /* entries of one map */
#define PROTO_FDS_MAX    253   /* fds in one packet: SCM_MAX_FD, unix(7) */

#define PROTO_NAME_MAX      255    /* bytes in an array's name */
#define PROTO_POOL_MAX      64     /* bytes in a pool's name */
#define PROTO_NDIM_MAX      32     /* dimensions of an array, as in NumPy 1 */
#define PROTO_TYPESTR_MAX   32     /* bytes in a typestr */
#define PROTO_DESCR_MAX     4096   /* bytes in the field list of a structured dtype */
#define PROTO_CLIENT_MAX    64     /* bytes in the name that a client gives itself */
#define PROTO_OPEN_MAX      1024   /* names in one open request */
#define PROTO_SET_MAX       262144 /* members of a set */
#define PROTO_SET_MAX_OLD   65536  /* of daemons that do not tell */
#define PROTO_CLOSE_MAX     1024   /* leases, and blocks, in one close notification */
#define PROTO_DROP_MAX      64     /* pages in one drop_pages notification */
#define PROTO_BEGIN_MAX     1024   /* arrays of one bracket */
#define PROTO_RESUME_MAX    1024 /* leases, blocks, pages, parts, ends in one resume request */
#define PROTO_METADATA_MAX  4096 /* bytes of metadata of an array */
#define PROTO_ALIGNMENT_MAX 2097152 /* of an array's first element, bytes: what a mapping has */

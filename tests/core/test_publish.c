/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names that change hands: publish, generations, watch, metadata.
 */
#include "harness.h"

#include "caid_test.h"

/* A lease on a new unnamed array of 100 bytes; where it lies in *ret. */
static uint64_t
unnamed(struct harness *h, uint64_t conn, const char *pool, struct h_reply *ret)
{
    *ret = *h_create_now(h, conn, NULL, pool, 100);
    cr_assert_eq(ret->error, 0, "%s", ret->text);
    return ret->lease;
}

/* Who has the old one keeps it; whoever opens the name gets the new one. */
CORE_TEST(publish, replaces, h_sharing)
{
    struct h_reply old, new;

    uint64_t a = h_connect(h, 1000, 1000), b = h_connect(h, 1000, 1000),
             c = h_connect(h, 1000, 1000);
    old = *h_create_now(h, a, "w", NULL, 100);
    cr_assert_eq(h_open(h, b, "w", NULL, "r")->generation, 1);
    uint64_t kept = h->replies[b].lease;
    uint64_t lease = unnamed(h, a, NULL, &new);
    cr_assert_eq(h_publish(h, a, lease, "w")->generation, 2);
    cr_assert_eq(h_open(h, c, "w", NULL, "r")->stamp, new.stamp);
    cr_assert_eq(h_open_generation(h, c, "w", NULL, 2)->stamp, new.stamp);
    cr_assert_eq(h_open_generation(h, c, "w", NULL, 1)->stamp, old.stamp, "held");
    h_close(h, c, h->replies[c].lease);
    h_close(h, a, old.lease);
    h_close(h, b, kept);
    cr_assert_eq(h_open_generation(h, c, "w", NULL, 1)->error, PROTO_ERR_STALE);
    cr_assert(strstr(h->replies[c].text, "generation 1; the current one is 2"), "%s",
              h->replies[c].text);
    cr_assert_eq(h_open_generation(h, c, "w", NULL, 3)->error, PROTO_ERR_STALE);
    h_unlink(h, c, "w", NULL);
    cr_assert_eq(h_open_generation(h, c, "w", NULL, 2)->stamp, new.stamp, "still held");
    h_disconnect(h, a);
    h_disconnect(h, c);
    cr_assert_eq(h_open_generation(h, b, "w", NULL, 2)->error, PROTO_ERR_STALE);
    cr_assert(strstr(h->replies[b].text, "there is none of that name"), "%s",
              h->replies[b].text);
}

/* Not even when nobody of the uid was there for a while. */
CORE_TEST(publish, generations_outlive_the_pool, h_sharing)
{
    uint64_t last = 0;

    for (int i = 0; i < 3; i++) {
        uint64_t a = h_connect(h, 1000, 1000);
        cr_assert_gt(h_create(h, a, "w", NULL, 0)->generation, last);
        last = h->replies[a].generation;
        h_unlink(h, a, "w", NULL);
        h_disconnect(h, a);
        cr_assert_eq(h_counts(h).users, 0);
    }
}

CORE_TEST(publish, refusals, h_sharing)
{
    struct h_reply array;
    static char metadata[PROTO_METADATA_MAX + 1];
    struct msg_publish_params params = {.name = MSG_STR("w")};

    uint64_t owner = h_connect(h, 1, 1), group = h_connect(h, 2, 10),
             creator = h_connect(h, 1, 1);
    h_create_now(h, owner, "v", "shared", 100);
    cr_assert_eq(h_open(h, group, "v", "shared", "r")->error, 0);
    cr_assert_eq(h_publish(h, group, h->replies[group].lease, "w")->error,
                 PROTO_ERR_PERMISSION);
    params.lease = unnamed(h, owner, NULL, &array);
    cr_assert_eq(h_publish(h, owner, 4711, "w")->error, PROTO_ERR_INVALID);
    cr_assert_eq(h_publish(h, owner, params.lease, "")->error, PROTO_ERR_INVALID_NAME);
    cr_assert_eq(h_publish(h, owner, params.lease, "a\nb")->error, PROTO_ERR_INVALID_NAME);
    memset(metadata, 'm', sizeof(metadata));
    params.metadata = (struct msg_str){metadata, sizeof(metadata)};
    cr_assert_eq(h_request(h, owner, MSG_PUBLISH, &params)->error, PROTO_ERR_INVALID);
    cr_assert(strstr(h->replies[owner].text, "4096 bytes"), "%s", h->replies[owner].text);
    params.metadata = (struct msg_str){"a\0b", 3};
    cr_assert_eq(h_request(h, owner, MSG_PUBLISH, &params)->error, PROTO_ERR_INVALID);
    cr_assert_eq(h_open(h, owner, "w", NULL, "r")->error, PROTO_ERR_NOT_FOUND);

    h_create_as(h, creator, 100,
                (struct msg_create_params){.name = MSG_STR("w"), .exclusive = true});
    cr_assert_eq(h_publish(h, owner, params.lease, "w")->error, PROTO_ERR_EXISTS,
                 "a name that is being created is taken");
    h_finish_all(h);
    cr_assert_eq(h->replies[creator].error, 0);
    params.metadata = (struct msg_str){metadata, PROTO_METADATA_MAX};
    cr_assert_eq(h_request(h, owner, MSG_PUBLISH, &params)->error, 0);
}

/* ---- rename ---- */

static struct h_reply *
rename_to(struct harness *h, uint64_t conn, const char *name, const char *pool, const char *to,
          bool replace)
{
    struct msg_rename_params params = {.name = MSG_STR(name),
                                       .pool = msg_str_opt(pool),
                                       .to = MSG_STR(to),
                                       .replace = replace};

    return h_request(h, conn, MSG_RENAME, &params);
}

CORE_TEST(rename, refusals, h_sharing)
{
    uint64_t owner = h_connect(h, 1, 1), group = h_connect(h, 2, 10),
             other = h_connect(h, 3, 3);
    uint64_t stamp = h_create_now(h, owner, "v", "shared", 100)->stamp;
    h_create_now(h, owner, "w", "shared", 100);
    cr_assert_eq(rename_to(h, group, "v", "shared", "x", true)->error, PROTO_ERR_PERMISSION);
    cr_assert_eq(rename_to(h, other, "v", "shared", "x", true)->error, PROTO_ERR_NOT_FOUND);
    cr_assert_eq(rename_to(h, owner, "v", "shared", "w", false)->error, PROTO_ERR_EXISTS);
    cr_assert_eq(rename_to(h, owner, "v", "shared", "v", false)->error, PROTO_ERR_EXISTS);
    cr_assert_eq(rename_to(h, owner, "v", "shared", "", true)->error, PROTO_ERR_INVALID_NAME);
    cr_assert_eq(h_open(h, owner, "v", "shared", "r")->stamp, stamp, "nothing has changed");

    h_create_as(h, other, 100,
                (struct msg_create_params){.name = MSG_STR("x"), .exclusive = true});
    cr_assert_eq(rename_to(h, other, "x", NULL, "y", true)->error, PROTO_ERR_NOT_FOUND,
                 "a name that is being created is not there");
    h_finish_all(h);
}

/* ---- watch ---- */

CORE_TEST(watch, tells_of_each_change, h_sharing)
{
    struct h_reply array;

    uint64_t a = h_connect(h, 1000, 1000), b = h_connect(h, 1000, 1000);
    cr_assert_not(h_watch(h, b, "w", NULL, 0)->seen, "it need not exist");
    h_create(h, a, "w", NULL, 100);
    cr_assert_not(h->replies[b].seen, "nor does it before its memory is there");
    h_finish_all(h);
    cr_assert(h->replies[b].seen);
    cr_assert_eq(h->replies[b].generation, 1);
    cr_assert(h_watch(h, b, "w", NULL, 0)->seen, "at once, for one that has not seen it");
    cr_assert_not(h_watch(h, b, "w", NULL, 1)->seen);
    uint64_t lease = unnamed(h, a, NULL, &array);
    h_publish(h, a, lease, "w");
    cr_assert_eq(h->replies[b].generation, 2);
    h_watch(h, b, "w", NULL, 2);
    h_publish(h, a, lease, "v");
    cr_assert(h->replies[b].seen);
    cr_assert_eq(h->replies[b].generation, 0, "renamed: there is none of that name");
    cr_assert_not(h_watch(h, b, "v", NULL, h->replies[a].generation)->seen);
    h_unlink(h, a, "v", NULL);
    cr_assert(h->replies[b].seen);
    cr_assert_eq(h->replies[b].generation, 0);
    cr_assert_eq(h_counts(h).watches, 0, "each was answered once");
}

static struct h_reply *
changes(struct harness *h, uint64_t conn, const char *prefix, bool again)
{
    return h_request(h, conn, MSG_CHANGES,
                     &(struct msg_changes_params){.prefix = MSG_STR(prefix), .again = again});
}

CORE_TEST(watch, tells_of_names_with_a_prefix, h_sharing)
{
    uint64_t conns[5], a = h_connect(h, 1000, 1000);
    const char *const prefixes[] = {"", "r", "run/", "run/2", "s"};

    cr_assert(changes(h, a, "run/", false)->seen, "at once");
    cr_assert_eq(h_counts(h).watches, 0);
    for (int i = 0; i < 5; i++) {
        conns[i] = h_connect(h, 1000, 1000);
        cr_assert_not(changes(h, conns[i], prefixes[i], true)->seen);
    }
    h_create(h, a, "run/1", NULL, 100);
    cr_assert_not(h->replies[conns[2]].seen, "not before its memory is there");
    h_finish_all(h);
    for (int i = 0; i < 5; i++) {
        cr_assert_eq(h->replies[conns[i]].seen, i < 3);
        cr_assert_eq(h->replies[conns[i]].error, 0);
    }
    cr_assert_eq(h_counts(h).watches, 2);
    changes(h, conns[2], "run/", true);
    h_create_now(h, a, "run", NULL, 100);
    cr_assert_not(h->replies[conns[2]].seen, "that is no name under it");
    h_unlink(h, a, "run/1", NULL);
    cr_assert(h->replies[conns[2]].seen);
    changes(h, conns[2], "run", true);
    h_request(h, a, MSG_RENAME,
              &(struct msg_rename_params){.name = MSG_STR("run"), .to = MSG_STR("s")});
    cr_assert(h->replies[conns[2]].seen && h->replies[conns[4]].seen, "of both names");
    cr_assert_not(h->replies[conns[3]].seen);
    h_disconnect(h, conns[3]);
    cr_assert_eq(h_counts(h).watches, 0);
}

static void
two_watches(struct core_config *config)
{
    h_sharing(config);
    config->limits.watches = 2;
}

CORE_TEST(watch, refusals, two_watches)
{
    uint64_t a = h_connect(h, 1000, 1000), b = h_connect(h, 1000, 1000),
             c = h_connect(h, 1001, 1001);
    cr_assert_eq(h_watch(h, a, "", NULL, 0)->error, PROTO_ERR_INVALID_NAME);
    cr_assert_eq(h_watch(h, a, "w", "shared", 0)->error, PROTO_ERR_NOT_FOUND);
    cr_assert_eq(h_watch(h, a, "w", "nowhere", 0)->error, PROTO_ERR_NOT_FOUND);
    cr_assert_eq(h_watch(h, c, "w", "uid:1000", 0)->error, PROTO_ERR_NOT_FOUND);
    h_watch(h, a, "w", NULL, 0);
    h_watch(h, b, "w", NULL, 0);
    cr_assert_eq(h_watch(h, b, "v", NULL, 0)->error, PROTO_ERR_LIMIT);
    cr_assert(h_watch(h, b, "v", NULL, 7)->seen, "one that is answered at once takes nothing");
    cr_assert_eq(h->replies[b].error, 0);
    cr_assert_not(h_watch(h, c, "w", NULL, 0)->seen, "another uid");
    cr_assert_eq(changes(h, b, "v", true)->error, PROTO_ERR_LIMIT);
    cr_assert_eq(changes(h, b, "\n", true)->error, PROTO_ERR_INVALID_NAME);
    cr_assert_not(changes(h, c, "", true)->seen);
    h->next_id--;
    cr_assert_eq(changes(h, c, "", true)->error, PROTO_ERR_INVALID);
}

/* The same request again, while it is a watch. */
CORE_TEST(watch, request_ids_are_the_clients, h_sharing)
{
    uint64_t a = h_connect(h, 1000, 1000);
    h_watch(h, a, "w", NULL, 0);
    h->next_id--;
    cr_assert_eq(h_watch(h, a, "w", NULL, 0)->error, PROTO_ERR_INVALID);
    cr_assert_eq(h_counts(h).watches, 1);
    cr_assert_not(h->closed[a]);
}

/* A watch keeps the pool of a uid that is not there, and no longer. */
CORE_TEST(watch, keeps_its_pool, h_sharing)
{
    struct msg_cancel_params params;

    uint64_t root = h_connect(h, 0, 0), a = h_connect(h, 1000, 1000);
    params.request = (h_watch(h, root, "w", "uid:1000", 0), h->next_id);
    h_disconnect(h, a);
    cr_assert_eq(h_counts(h).users, 2);
    h_create_now(h, root, "w", "uid:1000", 0);
    cr_assert_eq(h->replies[root].error, 0);
    cr_assert_eq(h_counts(h).watches, 0);
    h_watch(h, root, "w", "uid:1000", 1);
    h_disconnect(h, root);
    root = h_connect(h, 0, 0);
    cr_assert_eq(h_unlink(h, root, "w", "uid:1000")->error, 0);
    cr_assert_eq(h_counts(h).users, 1);

    a = h_connect(h, 1000, 1000);
    params.request = (h_watch(h, root, "w", "uid:1000", 0), h->next_id);
    h_disconnect(h, a);
    cr_assert_eq(h_counts(h).users, 2);
    h_notify(h, root, MSG_CANCEL, &params);
    cr_assert_eq(h_counts(h).users, 1);
}

static enum proto_error
stage(struct harness *h, uint64_t conn, uint64_t set, struct msg_str key, uint64_t lease)
{
    return h_request(h, conn, MSG_STAGE,
                     &(struct msg_stage_params){set, {&key, 1}, {&lease, 1}})
        ->error;
}

static uint64_t
names_charged(struct harness *h, uint64_t conn)
{
    return h_request(h, conn, MSG_USERS, &(struct msg_users_params){0})->users[0].names;
}

CORE_TEST(publish, sets_that_are_refused, NULL)
{
    char text[PROTO_NAME_MAX + 1] = {[0 ... PROTO_NAME_MAX - 1] = 'n'};

    uint64_t a = h_connect(h, 1000, 1000);
    uint64_t lease = h_create_now(h, a, NULL, NULL, 0)->lease;
    uint64_t set = h_create_now(h, a, NULL, NULL, 0)->lease;
    cr_assert_eq(stage(h, a, set, (struct msg_str){text, 200}, lease), 0);
    uint64_t n = names_charged(h, a);
    cr_assert_eq(stage(h, a, set, (struct msg_str){text, 200}, lease), PROTO_ERR_EXISTS);
    cr_assert_eq(names_charged(h, a), n);
    text[PROTO_NAME_MAX - 200 + 1] = '\0';
    cr_assert_eq(h_publish(h, a, set, text)->error, PROTO_ERR_INVALID_NAME);
    text[PROTO_NAME_MAX - 200] = '\0';
    cr_assert_eq(h_publish(h, a, set, text)->error, 0);
    h_unlink(h, a, text, NULL);
}

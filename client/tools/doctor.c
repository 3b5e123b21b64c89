/* SPDX-License-Identifier: Apache-2.0 */
/* Gathers the state that the checks look at, and runs them. */
#include "doctor.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "format.h"
#include "session/connect.h"

/* ---- gathering ---- */

static void
find_socket(struct doctor *doctor)
{
    if (connect_path(doctor->socket, sizeof(doctor->socket), doctor->ctl->socket,
                     &doctor->origin, &doctor->ctl->error) < 0)
        doctor->socket_error = -ENAMETOOLONG;
    else if (stat(doctor->socket, &doctor->socket_stat) < 0)
        doctor->socket_error = -errno;
    else if (!S_ISSOCK(doctor->socket_stat.st_mode))
        doctor->socket_error = -ENOTSOCK;
    else if (access(doctor->socket, W_OK) < 0)
        doctor->socket_error = -errno;
}

/* An attempt to connect. It may never end: then the thread and this struct are left behind. */
struct attempt {
    struct caid_connect_options options;
    struct caid_client *client;
    struct caid_error error;
};

static void *
attempt_run(void *arg)
{
    struct attempt *attempt = arg;
    caid_connect(&attempt->client, &attempt->options, &attempt->error);
    return NULL;
}

static void
connect_patiently(struct doctor *doctor)
{
    static struct attempt attempt;
    struct timespec until;
    pthread_t thread;

    attempt.options = (struct caid_connect_options)CAID_INIT(attempt.options);
    attempt.options.socket = doctor->socket;
    attempt.options.name = "caidctl";
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += DOCTOR_PATIENCE_S;
    if (pthread_create(&thread, NULL, attempt_run, &attempt) != 0)
        out_of_memory();
    if (pthread_timedjoin_np(thread, NULL, &until) != 0) {
        pthread_detach(thread);
        doctor->silent = true;
        return;
    }
    doctor->ctl->client = attempt.client;
    doctor->ctl->error = attempt.error;
}

static void
ask_daemon(struct doctor *doctor)
{
    struct ctl *ctl = doctor->ctl;

    connect_patiently(doctor);
    if (!ctl->client)
        return;
    doctor->status = (struct caid_status)CAID_INIT(doctor->status);
    if (caid_client_status(ctl->client, &doctor->status, &ctl->error) < 0) {
        caid_client_close(ctl->client);
        ctl->client = NULL;
        return;
    }
    doctor->n_devices = caid_client_devices(ctl->client, &doctor->devices);
}

/* Opens the driver that a client of this daemon uses here. */
static void
open_driver(struct doctor *doctor)
{
    const char *choice = secure_getenv("CAID_CUDA_DRIVER");

    if (!choice || !choice[0] || strcmp(choice, "auto") == 0)
        choice = doctor->ctl->client ? doctor->status.driver : "auto";
    doctor->driver_choice = choice;
    if (drv_open(&doctor->drv, choice, &doctor->driver_error) < 0)
        doctor->drv = NULL;
}

void
doctor_init(struct doctor *doctor, struct ctl *ctl)
{
    *doctor = (struct doctor){.ctl = ctl};
    find_socket(doctor);
    if (doctor->socket_error == 0)
        ask_daemon(doctor);
    open_driver(doctor);
}

void
doctor_deinit(struct doctor *doctor)
{
    drv_free(doctor->drv);
}

/* ---- running ---- */

static void
run_checks(const struct doctor *doctor, const struct check *check, int32_t device,
           doctor_fn *fn, void *userdata)
{
    for (; check->what; check++) {
        _cleanup_(finding_deinit) struct finding finding = {0};
        check->look(doctor, device, &finding);
        fn(check->what, device, &finding, userdata);
    }
}

void
doctor_run(const struct doctor *doctor, doctor_fn *fn, void *userdata)
{
    run_checks(doctor, doctor_checks_first, -1, fn, userdata);
    for (int32_t i = 0; i < doctor->n_devices; i++)
        run_checks(doctor, doctor_checks_device, i, fn, userdata);
    if (doctor->ctl->client)
        run_checks(doctor, doctor_checks_daemon, -1, fn, userdata);
}

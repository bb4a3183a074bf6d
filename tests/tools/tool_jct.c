/* Writes invented timings in the file format of kvdim-jct (job completion times), for tests.
 *
 * tool_jct costs OUT.h5 [METHOD [GPU]]   times of prompt and decode iterations
 *     METHOD  none: uncompressed cache; zack,p=0.5: cache of half the size; default: times of
 *             each of these two methods
 *     GPU     GPU name to write to the file, or the word none for a CPU
 * tool_jct replay OUT.h5 TRACE.csv       times of the requests that TRACE.csv lists */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "jct_fixture.h"
#include "serving/simulate/simulator.h"

static const char *const zack = "zack,p=0.5";

static int add_costs(jct_fixture *x, double factor, double attention, kvd_err *err)
{
    for (size_t n = 64; n <= 16384; n *= 4)
        for (size_t before = 0; before <= 4096; before += 4096)
            if (jct_fixture_piece(
                    x, n, before,
                    factor * (4e-3 + 3e-5 * (double)n +
                              attention * 1e-9 * (double)n * ((double)before + 0.5 * (double)n)),
                    err))
                return -1;
    for (size_t batch = 1; batch <= 64; batch *= 4)
        for (double context = 256; context <= 16384; context *= 8)
            if (jct_fixture_step(x, batch, context,
                                 factor * (4e-3 + 2e-5 * (double)batch +
                                           attention * 4e-8 * (double)batch * context),
                                 err))
                return -1;
    return 0;
}

static int write_costs(const char *path, double factor, const char *method, const kvd_run *run,
                       kvd_err *err)
{
    jct_fixture x;
    if (jct_fixture_begin(&x, err))
        return -1;
    x.facts.bytes_per_token = x.setting.dense_bytes_per_token = 131072;
    x.facts.cache_bytes = 131072. * 64 * 1000;
    x.facts.pages = 1000;
    x.setting.gpus = strcmp(run->gpu, "none") ? 1 : 0;
    if (strcmp(method, zack) && add_costs(&x, factor, 1, err))
        return -1;
    x.setting.method = zack;
    x.setting.name = "zack";
    x.setting.overall_p = 0.5;
    x.facts.bytes_per_token = 65536;
    x.facts.pages = 2000;
    if (strcmp(method, "none") && add_costs(&x, factor, 0.5, err))
        return -1;
    return jct_fixture_end(&x, path, run, err);
}

/* Simulates serving the requests q with the iteration times in the file `slow`. Writes the
 * simulated times to the file `path`, in the format of measured times. */
static int serve(const char *slow, const kvd_requests *q, const char *path, const kvd_run *run,
                 kvd_err *err)
{
    const kvd_batching_limits limits = {
        .max_batch = 16, .max_tokens = 8192, .chunk = 256, .pages = 1000};
    jct_fixture x;
    kvd_simulated out;
    kvd_served *served = calloc(q->n, sizeof *served);
    kvd_costs *costs = kvd_costs_load(slow, "none", -1, err);
    int status = !served || !costs || jct_fixture_begin(&x, err) ||
                 kvd_simulate(q, &limits, costs, 1, KVD_ROUTE_SHORTEST, served, NULL, &out, err);
    for (size_t i = 0; !status && i < q->n; i++) {
        x.facts.bytes_per_token = 131072;
        x.facts.cache_bytes = 131072. * 64 * 1000;
        x.setting.chunk = limits.chunk;
        const kvd_jct_request r = {.request = i,
                                   .input = q->request[i].input,
                                   .output = q->request[i].output,
                                   .arrival = served[i].arrival,
                                   .ttft = served[i].first - served[i].arrival,
                                   .jct = served[i].end - served[i].arrival};
        status = kvd_jct_add_request(x.rows, &x.setting, &r, err);
    }
    status = status || jct_fixture_end(&x, path, run, err);
    kvd_costs_free(costs);
    free(served);
    return status;
}

static int write_replay(const char *path, const char *trace, const kvd_run *run, kvd_err *err)
{
    kvd_requests q;
    if (kvd_requests_read(&q, trace, err))
        return -1;
    const int status = write_costs(path, 1.05, "both", run, err) || serve(path, &q, path, run, err);
    kvd_requests_release(&q);
    return status ? -1 : 0;
}

int main(int argc, char **argv)
{
    kvd_err err = {""};
    kvd_run run;
    kvd_common_options opt = {.seed = 1};
    int status = kvd_run_start(&run, "tool_jct", argc, argv, &opt, &err);
    if (!status && argc == 5)
        snprintf(run.gpu, sizeof run.gpu, "%s", argv[4]);
    if (!status && argc >= 3 && argc <= 5 && !strcmp(argv[1], "costs"))
        status = write_costs(argv[2], 1, argc > 3 ? argv[3] : "both", &run, &err);
    else if (!status && argc == 4 && !strcmp(argv[1], "replay"))
        status = write_replay(argv[2], argv[3], &run, &err);
    else if (!status)
        status =
            kvd_fail(&err, "usage: tool_jct costs OUT.h5 [METHOD [GPU]] | replay OUT.h5 TRACE");
    kvd_run_release(&run);
    return kvd_run_exit("tool_jct", status, &err);
}

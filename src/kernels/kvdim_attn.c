/* kvdim-attn: times and checks attention kernels on heads with different numbers of dimensions. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/device.h"
#include "common/files/csv.h"
#include "common/json.h"
#include "common/progress.h"
#include "common/run.h"
#include "formats/rows.h"
#include "kernels/timing/attn_options.h"
#include "kernels/timing/impl.h"

static const char program[] = "kvdim-attn";

typedef struct {
    kvd_attn_options *cfg;
    kvd_run run;
    bool cuda;
    char gpu_name[256];
    kvd_rates rates;
    kvd_width_list *widths;
    size_t n_widths;
    int32_t *lengths; /* lengths of the requests, from --lengths */
    size_t n_lengths, lengths_size;
    kvd_attn_entry entry[KVD_ATTN_ENTRIES];
    int n_entries;
    kvd_rate_ceilings ceilings[2]; /* ceilings[0] is for the CPU, ceilings[1] for the GPU. */
    bool measured[2];
    kvd_bench *bench;
    kvd_rows *out;
    size_t cases, done, wrong, left_out, printed;
    char *skipped; /* skipped implementations and cases with reasons, one per line */
    kvd_progress progress;
} sweep;

static int resolve_impls(sweep *s, kvd_err *err)
{
    kvd_attn_options *const cfg = s->cfg;
    const kvd_device device = cfg->common.device;
    kvd_err no_gpu = {""};
    const bool gpu =
        device != KVD_DEVICE_CPU && !kvd_cuda_here(s->gpu_name, sizeof s->gpu_name, &no_gpu);
    if (device == KVD_DEVICE_CUDA && !gpu)
        return kvd_fail(err, "--device cuda: %s", no_gpu.msg);
    if (!cfg->n_impls) {
        if (!gpu && device == KVD_DEVICE_AUTO && !cfg->common.quiet)
            fprintf(stderr, "%s: %s; timing the CPU\n", program, no_gpu.msg);
        static const char *const defaults[2][2] = {{"cpu", NULL}, {"cuda", "cudnn"}};
        for (int i = 0; i < 2 && defaults[gpu][i]; i++)
            if (!(cfg->impl[cfg->n_impls++] = kvd_impl_find(defaults[gpu][i], err)))
                return -1;
    }
    for (int i = 0; i < cfg->n_impls; i++) {
        if (cfg->impl[i]->cuda && !gpu)
            return device == KVD_DEVICE_CPU
                       ? kvd_fail(err, "--impl: '%s' runs on a GPU, --device is cpu",
                                  cfg->impl[i]->name)
                       : kvd_fail(err, "--impl: '%s' runs on a GPU; %s", cfg->impl[i]->name,
                                  no_gpu.msg);
        s->cuda = s->cuda || cfg->impl[i]->cuda;
    }
    if (!cfg->dtype_given)
        cfg->dtype[s->cuda ? KVD_BF16 : KVD_F32] = true;
    if (!cfg->scheduler_given)
        cfg->scheduler[KVD_BY_OURS] = true;
    return 0;
}

static int resolve_entries(sweep *s, kvd_err *err)
{
    const kvd_attn_options *const cfg = s->cfg;
    for (int i = 0; i < cfg->n_impls; i++)
        for (int k = 0; k < KVD_N_SCHEDULERS; k++) {
            if (!(cfg->impl[i]->schedulers & 1u << k) || (k != KVD_BY_ITSELF && !cfg->scheduler[k]))
                continue;
            if (s->n_entries == KVD_ATTN_ENTRIES)
                return kvd_fail(err, "more than %d implementations and schedulers",
                                (int)KVD_ATTN_ENTRIES);
            s->entry[s->n_entries++] = (kvd_attn_entry){cfg->impl[i], (kvd_scheduler)k};
        }
    return s->n_entries
               ? 0
               : kvd_fail(err, "--schedule: no implementation asked for has such a scheduler");
}

static kvd_width_list *next_widths(sweep *s)
{
    kvd_width_list *const w = &s->widths[s->n_widths++];
    w->heads.n_heads = (int)s->cfg->n_heads;
    w->heads.n_kv_heads = (int)s->cfg->n_kv_heads;
    w->heads.d_head = (int)s->cfg->d_head;
    w->heads.window = (int)s->cfg->window;
    return w;
}

static int resolve_widths(sweep *s, kvd_err *err)
{
    kvd_attn_options *const cfg = s->cfg;
    size_t points = 0;
    if (cfg->rates) {
        if (kvd_rates_load(&s->rates, cfg->rates, err))
            return -1;
        points = cfg->n_overall_p ? cfg->n_overall_p : s->rates.n_points;
        if (!cfg->d_head_given)
            cfg->d_head = (size_t)s->rates.model.d_head;
        if (cfg->d_head > KVD_WIDTH_MAX)
            return kvd_fail(err, "'%s' has d_head %zu, kernels take at most %d", cfg->rates,
                            cfg->d_head, (int)KVD_WIDTH_MAX);
    }
    const size_t n = cfg->n_dims + points + 1;
    s->widths = calloc(n, sizeof *s->widths);
    if (!s->widths)
        return kvd_no_memory(err, "widths", (unsigned long long)n * sizeof *s->widths);
    for (size_t i = 0; i < cfg->n_dims; i++)
        if (kvd_width_list_parse(next_widths(s), "--dims", cfg->dims[i], err))
            return -1;
    for (size_t i = 0; i < points; i++) {
        size_t point = i;
        if ((cfg->n_overall_p &&
             kvd_rates_point(cfg->rates, &s->rates, cfg->overall_p[i], &point, err)) ||
            kvd_width_list_rates(next_widths(s), cfg->rates, &s->rates, point, cfg->layer, err))
            return -1;
    }
    if (s->n_widths == 0) {
        char dense[16];
        snprintf(dense, sizeof dense, "%zu", cfg->d_head);
        return kvd_width_list_parse(next_widths(s), "--d-head", dense, err);
    }
    return 0;
}

static int read_length(void *ctx, size_t line, char *const *field, const size_t *len,
                       size_t n_fields, kvd_err *err)
{
    sweep *const s = ctx;
    size_t n;
    (void)line;
    if (n_fields != 1)
        return kvd_fail(err, "%zu columns, one length a line is wanted", n_fields);
    if (kvd_csv_check_zero_bytes(field, len, n_fields, err) ||
        kvd_arg_size("length", field[0], 1, INT32_MAX / 8, &n, err))
        return -1;
    if (s->n_lengths == s->lengths_size) {
        const size_t more = s->lengths_size ? 2 * s->lengths_size : 64;
        int32_t *const grown = more > 65535 * 2 ? NULL : realloc(s->lengths, more * sizeof *grown);
        if (!grown)
            return kvd_fail(err, "more than %zu lengths", s->n_lengths);
        s->lengths = grown;
        s->lengths_size = more;
    }
    s->lengths[s->n_lengths++] = (int32_t)n;
    return 0;
}

static int resolve_lengths(sweep *s, kvd_err *err)
{
    kvd_attn_options *const cfg = s->cfg;
    if (!cfg->lengths_file)
        return 0;
    if (kvd_csv_read(cfg->lengths_file, read_length, s, err))
        return kvd_in(err, "--lengths");
    if (!s->n_lengths)
        return kvd_fail(err, "--lengths: '%s' is empty", cfg->lengths_file);
    size_t longest = 0;
    for (size_t i = 0; i < s->n_lengths; i++)
        longest = (size_t)s->lengths[i] > longest ? (size_t)s->lengths[i] : longest;
    cfg->lengths = KVD_LENGTHS_FILE;
    cfg->size[0] = (kvd_attn_size){s->n_lengths, longest};
    cfg->n_sizes = 1;
    return 0;
}

static int add_input_once(sweep *s, const char *path, kvd_err *err)
{
    for (int i = 0; i < s->run.n_inputs; i++)
        if (!strcmp(s->run.inputs[i].path, path))
            return 0;
    return kvd_run_add_input(&s->run, path, err);
}

static int record(sweep *s, kvd_err *err)
{
    static const char *const checks[] = {"auto", "rows", "all", "none"};
    const kvd_attn_options *const cfg = s->cfg;
    kvd_run *const r = &s->run;
    char entries[500] = "", dtypes[32] = "";
    for (int i = 0; i < s->n_entries; i++) {
        const size_t used = strlen(entries);
        snprintf(entries + used, sizeof entries - used, "%s%s:%s", i ? " " : "",
                 s->entry[i].impl->name, kvd_scheduler_name[s->entry[i].scheduler]);
    }
    for (int i = 0; i < 3; i++)
        if (cfg->dtype[i]) {
            const size_t used = strlen(dtypes);
            snprintf(dtypes + used, sizeof dtypes - used, "%s%s", used ? " " : "",
                     kvd_dtype_name((kvd_dtype)i));
        }
    if (kvd_run_parameter(r, "impl", err, "%s", entries) ||
        kvd_run_parameter(r, "dtype", err, "%s", dtypes) ||
        kvd_run_parameter(r, "samples", err, "%d", cfg->plan.samples) ||
        kvd_run_parameter(r, "warmup", err, "%d", cfg->plan.warmup) ||
        kvd_run_parameter(r, "cold", err, "%s", cfg->plan.cold ? "yes" : "no") ||
        kvd_run_parameter(r, "check", err, "%s", checks[cfg->check]) ||
        kvd_run_parameter(r, "data", err, "%s", cfg->sharp ? "sharp" : "normal") ||
        kvd_run_parameter(r, "window", err, "%zu", cfg->window) ||
        kvd_run_parameter(r, "ragged", err, "%s", kvd_lengths_name[cfg->lengths]) ||
        (cfg->rates && add_input_once(s, cfg->rates, err)) ||
        (cfg->lengths_file && add_input_once(s, cfg->lengths_file, err)))
        return -1;
    for (size_t i = 0; i < s->n_widths && i < 100; i++) {
        char name[64], text[500] = "";
        const kvd_attn_heads *const h = &s->widths[i].heads;
        for (int g = 0; g < h->n_kv_heads; g++) {
            const size_t used = strlen(text);
            snprintf(text + used, sizeof text - used, "%s%d:%d", g ? "," : "", h->d_qk[g],
                     h->d_v[g]);
        }
        snprintf(name, sizeof name, "widths[%zu]", i);
        if (kvd_run_parameter(r, name, err, "%s", text))
            return -1;
    }
    for (size_t i = 0; i < cfg->n_dims; i++) {
        char *const path = kvd_width_list_path(cfg->dims[i]);
        const int status = path ? add_input_once(s, path, err) : 0;
        free(path);
        if (status)
            return -1;
    }
    return 0;
}

static int measure_machine(sweep *s, kvd_err *err)
{
    bool cpu = false;
    for (int i = 0; i < s->n_entries; i++)
        cpu = cpu || !s->entry[i].impl->cuda;
    s->measured[0] = cpu;
    s->measured[1] = s->cuda;
    if (!s->cfg->common.quiet)
        fputs("attn: measuring the bandwidth and arithmetic of this machine\n", stderr);
    if (kvd_bench_open(s->cuda, &s->bench, err) ||
        (cpu && kvd_ceilings_cpu(&s->ceilings[0], err)) ||
        (s->cuda && kvd_ceilings_gpu(&s->ceilings[1], err)))
        return kvd_in(err, "measuring this machine");
    for (int i = 0; i < 2 && !s->cfg->common.quiet && !s->cfg->common.json; i++) {
        const kvd_rate_ceilings *const c = &s->ceilings[i];
        if (s->measured[i])
            printf("%s: %.4g GB/s copied, %.4g GB/s read, %.4g TFLOP/s, %.4g T exp/s\n",
                   i ? s->gpu_name : kvd_cpu_name(), c->copy_bytes * 1e-9, c->read_bytes * 1e-9,
                   c->flop * 1e-12, c->exps * 1e-12);
    }
    return 0;
}

static void on_skipped(void *ctx, const char *line)
{
    sweep *const s = ctx;
    char *grown = NULL;
    s->left_out++;
    if (s->progress.terminal && !s->progress.quiet)
        fputc('\n', stderr);
    fprintf(stderr, "%s: %s\n", program, line);
    /* If memory runs out here, the result file does not say why this case was skipped. */
    if (strlen(s->skipped ? s->skipped : "") < 16000 &&
        asprintf(&grown, "%s%s%s", s->skipped ? s->skipped : "", s->skipped ? "\n" : "", line) >=
            0) {
        free(s->skipped);
        s->skipped = grown;
    }
}

static void print_new_rows(sweep *s)
{
    const kvd_rows *const r = s->out;
    char line[KVD_KERNELS_LINE];
    for (; s->printed < kvd_rows_count(r); s->printed++) {
        if (s->cfg->common.quiet || s->cfg->common.json)
            continue;
        if (!s->printed)
            puts(kvd_kernels_heading);
        puts(kvd_kernels_line(r, s->printed, line));
    }
    fflush(stdout);
}

static int write(sweep *s, kvd_err *err)
{
    const kvd_kernels_facts facts = {.cpu = s->measured[0] ? &s->ceilings[0] : NULL,
                                     .gpu = s->measured[1] ? &s->ceilings[1] : NULL,
                                     .gpu_name = s->gpu_name,
                                     .driver = kvd_bench_driver(s->bench),
                                     .skipped = s->skipped ? s->skipped : "",
                                     .cases = s->cases,
                                     .cases_done = s->done};
    return kvd_rows_count(s->out)
               ? kvd_kernels_write(s->out, s->cfg->common.output, &facts, &s->run, err)
               : 0;
}

static int run_case(sweep *s, kvd_attn_phase phase, kvd_dtype dtype, const kvd_attn_size *size,
                    const kvd_width_list *widths, kvd_err *err)
{
    const kvd_attn_options *const cfg = s->cfg;
    kvd_problem p = {.phase = phase,
                     .dtype = dtype,
                     .seed = cfg->common.seed,
                     .sharp = cfg->sharp,
                     .heads = widths->heads};
    memcpy(p.widths, widths->name, sizeof p.widths);
    const kvd_attn_case c = {.number = (int)s->done,
                             .problem = &p,
                             .entry = s->entry,
                             .n = s->n_entries,
                             .plan = &cfg->plan,
                             .check = cfg->check,
                             .cpu = s->measured[0] ? &s->ceilings[0] : NULL,
                             .gpu = s->measured[1] ? &s->ceilings[1] : NULL};
    int status =
        kvd_problem_lengths(&p, cfg->lengths, (int)size->batch, size->seq_len, s->lengths, err);
    if (!status)
        status = kvd_attn_case_run(&c, s->bench, s->out, on_skipped, s, &s->wrong, err);
    if (status)
        kvd_in(err, "%s, %zu x %zu, %s, %s", kvd_attn_phase_name[phase], size->batch, size->seq_len,
               kvd_dtype_name(dtype), widths->name);
    kvd_problem_release(&p);
    return status;
}

static int run_cases(sweep *s, kvd_err *err)
{
    const kvd_attn_options *const cfg = s->cfg;
    for (int phase = 0; phase < KVD_N_ATTN_PHASES; phase++)
        for (int dtype = 0; dtype < 3; dtype++)
            for (int i = 0; cfg->phase[phase] && cfg->dtype[dtype] && i < cfg->n_sizes; i++)
                for (size_t w = 0; w < s->n_widths; w++) {
                    if (run_case(s, (kvd_attn_phase)phase, (kvd_dtype)dtype, &cfg->size[i],
                                 &s->widths[w], err))
                        return -1;
                    s->done++;
                    if (write(s, err)) {
                        /* A case does not count as done if its results could not be written. */
                        s->done--;
                        return -1;
                    }
                    print_new_rows(s);
                    kvd_progress_step(&s->progress, (double)s->done);
                }
    return 0;
}

static void count_cases(sweep *s)
{
    const kvd_attn_options *const cfg = s->cfg;
    size_t types = 0, phases = 0;
    for (int i = 0; i < 3; i++)
        types += cfg->dtype[i];
    for (int i = 0; i < KVD_N_ATTN_PHASES; i++)
        phases += cfg->phase[i];
    s->cases = phases * types * (size_t)cfg->n_sizes * s->n_widths;
}

static json_t *rates_json(const sweep *s, int i)
{
    const kvd_rate_ceilings *const c = &s->ceilings[i];
    return s->measured[i]
               ? json_pack("{s:s, s:f, s:f, s:f, s:f}", "device", i ? s->gpu_name : kvd_cpu_name(),
                           "copy_bytes_per_s", c->copy_bytes, "read_bytes_per_s", c->read_bytes,
                           "flop_per_s", c->flop, "exps_per_s", c->exps)
               : json_null();
}

static int print_json(const sweep *s, kvd_err *err)
{
    json_t *const all =
        json_pack("{s:s, s:s, s:I, s:I, s:I, s:o, s:o, s:o}", "program", program, "output",
                  s->cfg->common.output, "cases", (json_int_t)s->cases, "cases_done",
                  (json_int_t)s->done, "wrong", (json_int_t)s->wrong, "cpu", rates_json(s, 0),
                  "gpu", rates_json(s, 1), "rows", kvd_rows_json(s->out));
    return kvd_json_print(all, err);
}

static int work(sweep *s, kvd_err *err)
{
    const kvd_attn_options *const cfg = s->cfg;
    if (resolve_impls(s, err) || resolve_entries(s, err) || resolve_widths(s, err) ||
        resolve_lengths(s, err) || record(s, err) || measure_machine(s, err) ||
        !(s->out = kvd_kernels_rows(cfg->plan.samples, err)))
        return -1;
    count_cases(s);
    kvd_progress_start(&s->progress, "attn", "cases", (double)s->cases, cfg->common.quiet);
    const int status = run_cases(s, err);
    kvd_progress_end(&s->progress);
    if (status) {
        if (s->done)
            kvd_in(err, "%zu of %zu cases are in '%s'", s->done, s->cases, cfg->common.output);
        return -1;
    }
    if (!kvd_rows_count(s->out))
        return kvd_fail(err, "nothing was timed: no implementation takes any of the cases");
    if (cfg->common.json && print_json(s, err))
        return -1;
    return s->wrong ? kvd_fail(err, "%zu of %zu rows are above the tolerance (ok = 0 in '%s')",
                               s->wrong, kvd_rows_count(s->out), cfg->common.output)
                    : 0;
}

static void release(sweep *s)
{
    kvd_rows_free(s->out);
    kvd_bench_close(s->bench);
    kvd_rates_release(&s->rates);
    free(s->widths);
    free(s->lengths);
    free(s->skipped);
    kvd_attn_options_release(s->cfg);
    kvd_run_release(&s->run);
}

int main(int argc, char **argv)
{
    static kvd_attn_options cfg;
    static sweep s;
    kvd_err err = {""};
    kvd_attn_parse(argc, argv, &cfg);
    s.cfg = &cfg;
    int status = kvd_run_start(&s.run, program, argc, argv, &cfg.common, &err);
    if (!status)
        status = work(&s, &err);
    release(&s);
    return kvd_run_exit(program, status, &err);
}

#include "serving/jct/jct_rows.h"

#include <stdio.h>
#include <string.h>

#include "common/stats.h"
#include "serving/batching.h"

static void put_setting(kvd_rows *r, const char *kind, const kvd_jct_setting *s)
{
    char fused[256] = "";
    for (int p = 0; p < KVD_PHASES; p++)
        if (s->facts->fused & 1u << p) {
            const size_t used = strlen(fused);
            snprintf(fused + used, sizeof fused - used, "%s%s", used ? " " : "",
                     kvd_phase_column((kvd_phase)p));
        }
    kvd_rows_text(r, "kind", kind);
    kvd_rows_text(r, "method", s->method);
    kvd_rows_text(r, "name", s->name);
    kvd_rows_real(r, "overall_p", s->overall_p);
    kvd_rows_real(r, "width_min", s->width_min);
    kvd_rows_real(r, "width_max", s->width_max);
    kvd_rows_real(r, "width_cv", s->width_cv);
    kvd_rows_text(r, "dtype", kvd_dtype_name(s->type));
    kvd_rows_text(r, "engine", s->facts->what);
    kvd_rows_int(r, "gpus", s->gpus);
    kvd_rows_text(r, "parallel", s->gpus < 2 ? "" : s->sequence ? "sequence" : "tensor");
    kvd_rows_int(r, "graphs", s->graphs);
    kvd_rows_int(r, "phases", s->phases);
    kvd_rows_text(r, "fused", fused);
    kvd_rows_int(r, "chunk", (int64_t)s->chunk);
    kvd_rows_text(r, "admission", kvd_admission_name[s->admission]);
    kvd_rows_real(r, "bytes_per_token", s->facts->bytes_per_token);
    kvd_rows_real(r, "dense_bytes_per_token", s->dense_bytes_per_token);
    kvd_rows_real(r, "cache_bytes", s->facts->cache_bytes);
    kvd_rows_real(r, "weight_bytes", s->facts->weight_bytes);
    kvd_rows_real(r, "peak_bytes", s->facts->peak_bytes);
}

static void put_gaps(kvd_rows *r, const double *gap, size_t n)
{
    if (!n)
        return;
    kvd_rows_real(r, "tbt_mean_s", kvd_mean(gap, n));
    kvd_rows_real(r, "tbt_p50_s", kvd_quantile(gap, n, 0.5));
    kvd_rows_real(r, "tbt_p99_s", kvd_quantile(gap, n, 0.99));
    kvd_rows_real(r, "tbt_max_s", kvd_quantile(gap, n, 1));
}

static void put_parts(kvd_rows *r, const char *of, const kvd_phase_times *t, bool phases)
{
    char column[48];
    snprintf(column, sizeof column, "%s_s", of);
    kvd_rows_real(r, column, t->total);
    if (!phases)
        return;
    snprintf(column, sizeof column, "%s_residue_s", of);
    kvd_rows_real(r, column, kvd_phase_residue(t));
    for (int p = 0; p < KVD_PHASES; p++) {
        snprintf(column, sizeof column, "%s_%s_s", of, kvd_phase_column((kvd_phase)p));
        kvd_rows_real(r, column, t->part[p]);
    }
}

static int median_run(const kvd_jct_run *run, int n)
{
    for (int i = 0; i < n; i++) {
        int before = 0;
        for (int k = 0; k < n; k++)
            before += run[k].jct < run[i].jct || (k < i && !(run[i].jct < run[k].jct));
        if (before == (n - 1) / 2)
            return i;
    }
    return 0;
}

int kvd_jct_add_job(kvd_rows *r, const kvd_jct_setting *s, size_t batch, size_t input,
                    size_t output, const kvd_jct_run *run, int n_runs, const double *gap,
                    size_t n_gaps, kvd_err *err)
{
    if (kvd_rows_begin(r, err))
        return -1;
    double *const second = kvd_rows_samples(r, KVD_JCT_SECONDS, kvd_rows_count(r) - 1),
                  *const ttft = kvd_rows_samples(r, KVD_JCT_TTFT, kvd_rows_count(r) - 1);
    const int samples = (int)kvd_rows_samples_spec(r, KVD_JCT_SECONDS)->dims[1];
    for (int i = 0; i < n_runs && i < samples; i++) {
        second[i] = run[i].jct;
        ttft[i] = run[i].ttft_mean;
    }
    const kvd_jct_run *const m = &run[median_run(run, n_runs)];
    put_setting(r, "job", s);
    kvd_rows_int(r, "batch", (int64_t)batch);
    kvd_rows_int(r, "input", (int64_t)input);
    kvd_rows_int(r, "output", (int64_t)output);
    kvd_rows_int(r, "running", (int64_t)m->running);
    kvd_rows_int(r, "preempted", (int64_t)m->preempted);
    kvd_rows_int(r, "recomputed", (int64_t)m->recomputed);
    kvd_rows_int(r, "iterations", (int64_t)m->iterations);
    kvd_rows_real(r, "step_weight", s->step_weight);
    kvd_rows_real(r, "jct_s", m->jct);
    kvd_rows_real(r, "jct_min_s", kvd_quantile(second, (size_t)n_runs, 0));
    kvd_rows_real(r, "jct_max_s", kvd_quantile(second, (size_t)n_runs, 1));
    kvd_rows_real(r, "jct_mad_s", kvd_mad(second, (size_t)n_runs));
    kvd_rows_real(r, "ttft_s", m->ttft_mean);
    kvd_rows_real(r, "ttft_max_s", m->ttft_max);
    put_gaps(r, gap, n_gaps);
    kvd_rows_real(r, "tokens_per_s", (double)(batch * output) / m->jct);
    put_parts(r, "prefill", &m->prefill, s->phases);
    put_parts(r, "decode", &m->decode, s->phases);
    if (s->phases)
        kvd_rows_real(r, "residue_share",
                      (kvd_phase_residue(&m->prefill) + kvd_phase_residue(&m->decode)) / m->jct);
    kvd_rows_real(r, "held_bytes", m->held_bytes);
    kvd_rows_real(r, "bytes_per_token", m->held_bytes / m->held_tokens);
    kvd_rows_real(r, "sent_qkv_bytes", m->sent[0]);
    kvd_rows_real(r, "sent_o_bytes", m->sent[1]);
    kvd_rows_real(r, "energy_j", m->joules);
    return 0;
}

int kvd_jct_add_iteration(kvd_rows *r, const kvd_jct_setting *s, size_t piece, size_t before,
                          size_t batch, double context, const double *second, int n, kvd_err *err)
{
    if (kvd_rows_begin(r, err))
        return -1;
    const int samples = (int)kvd_rows_samples_spec(r, KVD_JCT_SECONDS)->dims[1];
    memcpy(kvd_rows_samples(r, KVD_JCT_SECONDS, kvd_rows_count(r) - 1), second,
           (size_t)(n < samples ? n : samples) * sizeof *second);
    put_setting(r, "iteration", s);
    kvd_rows_int(r, "batch", (int64_t)batch);
    kvd_rows_int(r, "piece", (int64_t)piece);
    kvd_rows_int(r, "before", (int64_t)before);
    if (!piece)
        kvd_rows_real(r, "context", context);
    kvd_rows_real(r, "seconds", kvd_quantile(second, (size_t)n, 0.5));
    kvd_rows_real(r, "seconds_mad", kvd_mad(second, (size_t)n));
    return 0;
}

int kvd_jct_add_request(kvd_rows *r, const kvd_jct_setting *s, const kvd_jct_request *q,
                        kvd_err *err)
{
    if (kvd_rows_begin(r, err))
        return -1;
    put_setting(r, "request", s);
    kvd_rows_int(r, "request", (int64_t)q->request);
    kvd_rows_int(r, "input", (int64_t)q->input);
    kvd_rows_int(r, "output", (int64_t)q->output);
    kvd_rows_real(r, "arrival_s", q->arrival);
    kvd_rows_int(r, "preempted", (int64_t)q->preempted);
    kvd_rows_int(r, "recomputed", (int64_t)q->recomputed);
    kvd_rows_real(r, "ttft_s", q->ttft);
    kvd_rows_real(r, "jct_s", q->jct);
    put_gaps(r, q->gap, q->n_gaps);
    return 0;
}

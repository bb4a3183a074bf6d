#include "serving/jct/jct_trace.h"

#include <string.h>

int kvd_jct_trace_open(kvd_jct_trace *t, const char *path, kvd_err *err)
{
    if (kvd_output_begin(&t->out, path, err) || !(t->f = kvd_output_create(t->out.partial, err)))
        return -1;
    fputs("{\"displayTimeUnit\": \"ms\", \"traceEvents\": [", t->f);
    return 0;
}

int kvd_jct_trace_close(kvd_jct_trace *t, kvd_err *err)
{
    if (!t->f)
        return 0;
    fputs("\n]}\n", t->f);
    const bool failed = ferror(t->f) != 0;
    if (fclose(t->f) || failed) {
        t->f = NULL;
        return kvd_fail(err, "cannot write '%s'", t->out.partial);
    }
    t->f = NULL;
    return kvd_output_commit(&t->out, err);
}

void kvd_jct_trace_release(kvd_jct_trace *t)
{
    if (t->f)
        fclose(t->f);
    kvd_output_release(&t->out, false);
    memset(t, 0, sizeof *t);
}

static void next(kvd_jct_trace *t)
{
    fputs(t->any ? ",\n" : "\n", t->f);
    t->any = true;
}

void kvd_jct_trace_job(kvd_jct_trace *t, const char *name)
{
    if (!t->f)
        return;
    next(t);
    fprintf(t->f,
            "{\"ph\": \"M\", \"name\": \"process_name\", \"pid\": %d, \"args\": {\"name\": \"",
            ++t->process);
    for (const char *c = name; *c; c++)
        if ((unsigned char)*c >= 0x20 && *c != '"' && *c != '\\')
            fputc(*c, t->f);
    fputs("\"}}", t->f);
    next(t);
    fprintf(
        t->f,
        "{\"ph\": \"M\", \"name\": \"thread_name\", \"pid\": %d, \"tid\": 1, \"args\": {\"name\": "
        "\"engine\"}}",
        t->process);
}

static double micro(const kvd_jct_trace *t, double seconds)
{
    return (seconds - t->zero) * 1e6;
}

void kvd_jct_trace_iteration(kvd_jct_trace *t, const kvd_iteration *it, double begin,
                             const kvd_phase_times *times)
{
    if (!t->f)
        return;
    next(t);
    fprintf(
        t->f,
        "{\"ph\": \"X\", \"name\": \"%s\", \"cat\": \"iteration\", \"pid\": %d, \"tid\": 1, \"ts\": "
        "%.3f, \"dur\": "
        "%.3f, \"args\": {\"requests\": %zu, \"steps\": %zu, \"tokens\": %zu, \"residue_us\": %.3f}}",
        it->n_steps == it->n_slices ? "step"
        : it->n_steps               ? "step + prompt"
                                    : "prompt",
        t->process, micro(t, begin), times->total * 1e6, it->n_slices, it->n_steps, it->n_tokens,
        kvd_phase_residue(times) * 1e6);
    double at = begin;
    for (int p = 0; p < KVD_PHASES; p++) {
        if (!(times->part[p] > 0))
            continue;
        next(t);
        fprintf(t->f,
                "{\"ph\": \"X\", \"name\": \"%s\", \"cat\": \"phase\", \"pid\": %d, \"tid\": 1, "
                "\"ts\": %.3f, \"dur\": %.3f}",
                kvd_phase_column((kvd_phase)p), t->process, micro(t, at), times->part[p] * 1e6);
        at += times->part[p];
    }
}

static void span(kvd_jct_trace *t, const char *phase, const char *name, size_t request, double at)
{
    next(t);
    fprintf(
        t->f,
        "{\"ph\": \"%s\", \"name\": \"%s\", \"cat\": \"request\", \"id\": %zu, \"pid\": %d, \"tid\": 2, "
        "\"ts\": %.3f}",
        phase, name, request, t->process, micro(t, at));
}

void kvd_jct_trace_request(kvd_jct_trace *t, size_t request, double arrival, double first,
                           double last)
{
    char name[48];
    if (!t->f)
        return;
    snprintf(name, sizeof name, "request %zu", request);
    span(t, "b", name, request, arrival);
    span(t, "n", "first token", request, first);
    span(t, "e", name, request, last);
}

/* Section of the report: timeline of the inference engine's iterations, from kvdim-jct
 * --timeline. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/run.h"
#include "report/rows.h"
#include "report/studies/studies.h"

enum { ITERATIONS = 48 };

/* Events of one job in a timeline file. pid: process id, by which events of different jobs are
 * distinguished. */
typedef struct {
    const char *path;
    json_t *events;
    json_int_t pid;
    const char *job;
    double begin, end; /* microseconds */
    kvd_table *iterations, *parts, *requests;
} timeline;

static const char *text(const json_t *event, const char *key)
{
    const char *const s = json_string_value(json_object_get(event, key));
    return s ? s : "";
}

static double number(const json_t *event, const char *key)
{
    const json_t *const x = json_object_get(event, key);
    return json_is_number(x) ? json_number_value(x) : (double)NAN;
}

static bool is(const timeline *t, const json_t *event, const char *ph, const char *category)
{
    return json_integer_value(json_object_get(event, "pid")) == t->pid &&
           !strcmp(text(event, "ph"), ph) && (!category || !strcmp(text(event, "cat"), category));
}

static int find_window(timeline *t, kvd_err *err)
{
    size_t i, n = 0;
    json_t *e;
    t->job = "";
    t->begin = INFINITY;
    json_array_foreach(t->events, i, e)
    {
        if (!t->pid && !strcmp(text(e, "ph"), "X"))
            t->pid = json_integer_value(json_object_get(e, "pid"));
        if (!strcmp(text(e, "ph"), "M") && !strcmp(text(e, "name"), "process_name") && !*t->job)
            t->job = text(json_object_get(e, "args"), "name");
        if (t->pid && is(t, e, "X", "iteration") && n < ITERATIONS) {
            t->begin = fmin(t->begin, number(e, "ts"));
            t->end = fmax(t->end, number(e, "ts") + number(e, "dur"));
            n++;
        }
    }
    return n && t->end > t->begin
               ? 0
               : kvd_fail(err, "'%s': no iteration, as kvdim-jct --timeline writes them", t->path);
}

static void box(const timeline *t, kvd_table *to, const json_t *e)
{
    kvd_table_real(to, (number(e, "ts") - t->begin) / 1000);
    kvd_table_real(to, (number(e, "ts") + number(e, "dur") - t->begin) / 1000);
}

static void put_boxes(const timeline *t)
{
    size_t i;
    json_t *e;
    json_array_foreach(t->events, i, e)
    {
        if (!is(t, e, "X", NULL) || !(number(e, "ts") >= t->begin) ||
            !(number(e, "ts") + number(e, "dur") <= t->end))
            continue;
        if (!strcmp(text(e, "cat"), "iteration")) {
            const json_t *const args = json_object_get(e, "args");
            box(t, t->iterations, e);
            kvd_table_int(t->iterations, !strcmp(text(e, "name"), "step") ? 0 : 1);
            kvd_table_count(t->iterations, number(args, "requests"));
            kvd_table_count(t->iterations, number(args, "tokens"));
        } else if (!strcmp(text(e, "cat"), "phase")) {
            box(t, t->parts, e);
            kvd_table_int(t->parts, kvd_jct_part_of(text(e, "name")));
        }
    }
}

/* Returns the time of a request's first event of type `ph` ("n": first token, "e": end), or NaN if
 * it has no such event. */
static double moment(const timeline *t, json_int_t request, const char *ph)
{
    size_t i;
    json_t *e;
    json_array_foreach(t->events, i, e) if (is(t, e, ph, "request") &&
                                            json_integer_value(json_object_get(e, "id")) ==
                                                request) return number(e, "ts");
    return (double)NAN;
}

static void put_requests(const timeline *t)
{
    size_t i;
    json_t *e;
    json_array_foreach(t->events, i, e)
    {
        const json_int_t request = json_integer_value(json_object_get(e, "id"));
        if (!is(t, e, "b", "request") || !(number(e, "ts") < t->end))
            continue;
        kvd_table_int(t->requests, request);
        kvd_table_real(t->requests, (number(e, "ts") - t->begin) / 1000);
        kvd_table_real(t->requests, (fmin(moment(t, request, "n"), t->end) - t->begin) / 1000);
        kvd_table_real(t->requests, (fmin(moment(t, request, "e"), t->end) - t->begin) / 1000);
    }
}

static void fill(timeline *t, kvd_report *report)
{
    char keys[400] = "";
    kvd_section *const s = kvd_report_section(report, "timeline", "Timeline");
    t->iterations = kvd_section_data(s, "timeline-iterations", "Iterations");
    t->parts = kvd_section_data(s, "timeline-parts", "Their parts");
    t->requests = kvd_section_data(s, "timeline-requests", "Requests");
    kvd_table *const boxes[] = {t->iterations, t->parts};
    for (int i = 0; i < 2; i++) {
        kvd_table_add_column(boxes[i], KVD_CELL_REAL, 6, "begin_ms", "from");
        kvd_table_add_column(boxes[i], KVD_CELL_REAL, 6, "end_ms", "to");
    }
    kvd_table_add_column(t->iterations, KVD_CELL_INT, 0, "prompt", "with a piece of a prompt");
    kvd_table_add_column(t->iterations, KVD_CELL_INT, 0, "requests", "requests");
    kvd_table_add_column(t->iterations, KVD_CELL_INT, 0, "tokens", "tokens");
    kvd_table_add_column(t->parts, KVD_CELL_INT, 0, "part", "part");
    kvd_table_add_column(t->requests, KVD_CELL_INT, 0, "request", "request");
    kvd_table_add_column(t->requests, KVD_CELL_REAL, 6, "arrival_ms", "arrival");
    kvd_table_add_column(t->requests, KVD_CELL_REAL, 6, "first_ms", "first token");
    kvd_table_add_column(t->requests, KVD_CELL_REAL, 6, "last_ms", "last token");
    put_boxes(t);
    put_requests(t);
    for (int p = 0; p < KVD_JCT_PARTS; p++) {
        const size_t used = strlen(keys);
        snprintf(keys + used, sizeof keys - used, " \"%s\"", kvd_jct_part_title[p]);
    }
    kvd_section_figure(
        s, "timeline", "timeline.gp", 1000, 470,
        "The first iterations of a run of kvdim-jct: requests from arrival over first token (dot) "
        "to last token, iterations with and without pieces of prompts, and the parts of each. "
        "Lengths of parts are measured; they are sums over layers, one after another, "
        "so their places are not.",
        "parts='%s'; n_parts=%d", keys, (int)KVD_JCT_PARTS);
}

int kvd_study_timeline(const char *path, kvd_report *report, kvd_err *err)
{
    json_error_t why;
    if (!path)
        return 0;
    FILE *const f = kvd_run_open_input(path, err);
    if (!f)
        return -1;
    json_t *const root = json_loadf(f, 0, &why);
    fclose(f);
    timeline t = {.path = path, .events = root ? json_object_get(root, "traceEvents") : NULL};
    int status =
        !root ? kvd_fail(err, "'%s': %s", path, why.text)
        : !json_is_array(t.events)
            ? kvd_fail(err, "'%s': no traceEvents, as kvdim-jct --timeline writes them", path)
            : 0;
    if (!status && !(status = find_window(&t, err)))
        fill(&t, report);
    json_decref(root);
    return status;
}

/* kvdim-tasks: measures how a compressed KV cache changes generated answers. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/device.h"
#include "common/files/fields.h"
#include "common/files/output.h"
#include "common/json.h"
#include "evaluate/accuracy_text.h"
#include "evaluate/tasks/benchmark_table.h"
#include "evaluate/tasks/task_options.h"
#include "evaluate/tasks/task_table.h"
#include "formats/accuracy.h"
#include "formats/rows.h"
#include "model/model_info.h"

static const char program[] = "kvdim-tasks";

typedef struct {
    kvd_tasks_options *cfg;
    kvd_inputs in;
    kvd_task_run tasks;
    kvd_task_table *table;
    /* benchmark items (prompts with right answers), read with --benchmark or made with --ruler */
    kvd_benchmark items;
    kvd_benchmark_run benchmark;
    kvd_benchmark_table *scores;
    const kvd_chat *chat; /* NULL if prompts are no chat */
    kvd_run_key key;      /* the options that --resume compares */
    kvd_journal *journal;
    kvd_output part; /* lock on the journal of one --part */
    kvd_method_target target[KVD_EVAL_METHODS];
    size_t n_targets;
    kvd_h5 file;
} tasks_run;

static int check_gpus(const tasks_run *v, kvd_err *err)
{
    const int gpus = v->cfg->gpus, there = kvd_cuda_count();
    if (gpus && !v->in.run.gpu[0])
        return kvd_fail(err, "--gpus %d: this runs on the CPU", gpus);
    if (gpus > there)
        return kvd_fail(err, "--gpus %d: %d can be used here", gpus, there);
    return 0;
}

static kvd_generator_spec generator_of(const tasks_run *v)
{
    return (kvd_generator_spec){.gpu = v->in.run.gpu[0] != '\0',
                                .compute = v->cfg->in.compute,
                                .n_gpus = v->cfg->gpus,
                                .part = v->cfg->part ? v->cfg->part - 1 : 0,
                                .n_parts = v->cfg->parts,
                                .max_tokens = v->cfg->in.batch};
}

static const char *generator_name(const tasks_run *v)
{
    const kvd_generator_spec s = generator_of(v);
    return kvd_generator_name(&s);
}

static void print_path(const tasks_run *v, const kvd_generator *g, const kvd_point *point,
                       const kvd_plan *plan)
{
    char why[KVD_GENERATOR_WHY];
    const char *const path = kvd_generator_path(g, plan, why);
    if (v->in.run.gpu[0] && !v->cfg->in.common.quiet)
        fprintf(stderr, "%s: %s: %s%s%s\n", program, kvd_method_name(point->method), path,
                *why ? ", because " : "", why);
}

static const char *target_metric(const tasks_run *v)
{
    return kvd_target_metric_words[v->cfg->target_metric];
}

static int find_chat(tasks_run *v, kvd_err *err)
{
    char *path;
    v->chat = kvd_chat_form(v->cfg->chat);
    if (v->cfg->chat != KVD_CHAT_AUTO)
        return 0;
    if (!(v->chat = kvd_chat_read(v->cfg->in.model, &path, err)))
        return -1;
    const int status = kvd_run_add_input(&v->in.run, path, err);
    if (!v->cfg->in.common.quiet)
        fprintf(stderr, "%s: '%s' has the chat form %s\n", program, path, v->chat->name);
    free(path);
    return status;
}

static int count_chat_tokens(const tasks_run *v, size_t *n, kvd_err *err)
{
    const kvd_chat_pieces p = kvd_chat_around(v->chat, "", true);
    kvd_ids ids = {0};
    char *text;
    if (asprintf(&text, "%s%s%s%s", p.before[0], p.before[1], p.before[2], p.after) < 0)
        return kvd_no_memory(err, "a chat form", 0);
    const int status = kvd_tokenizer_encode(v->in.tokenizer, text, strlen(text), false, &ids, err);
    *n = ids.n;
    kvd_ids_release(&ids);
    free(text);
    return status;
}

static int make_ruler(tasks_run *v, const kvd_benchmark_settings *changes, kvd_err *err)
{
    const kvd_tasks_options *const cfg = v->cfg;
    kvd_ruler_settings s = cfg->ruler;
    s.items = cfg->items;
    s.seed = v->in.run.seed;
    s.special = !cfg->in.no_special && !v->chat;
    s.context_apart = cfg->compress_at == KVD_COMPRESS_CONTEXT;
    size_t around = 0;
    if (count_chat_tokens(v, &around, err))
        return -1;
    if (around >= cfg->in.seq_len)
        return kvd_fail(err, "--seq-len %zu: the chat form %s alone has %zu tokens",
                        cfg->in.seq_len, v->chat->name, around);
    s.length = cfg->in.seq_len - around;
    kvd_benchmark *const made = &v->items;
    return kvd_ruler_make(made, &s, changes, v->in.tokenizer, err) ||
           (cfg->write_items &&
            kvd_ruler_write(made, cfg->write_items, v->in.tokenizer, s.special, err));
}

static int check_items_path(const kvd_tasks_options *cfg, kvd_err *err)
{
    const char *const path = cfg->write_items;
    if (!path)
        return 0;
    if (kvd_run_not_the_input(path, cfg->in.model, err) ||
        (cfg->ruler.essay && kvd_run_not_the_input(path, cfg->ruler.essay, err)))
        return -1;
    for (size_t i = 0; i < cfg->n_benchmark; i++)
        if (kvd_run_not_the_input(path, cfg->benchmark[i], err))
            return -1;
    return 0;
}

static int read_items(tasks_run *v, kvd_err *err)
{
    kvd_tasks_options *const cfg = v->cfg;
    const size_t longest = (size_t)v->in.model->max_positions;
    const kvd_benchmark_settings settings = {.form = cfg->form,
                                             .metric = cfg->metric_given ? (int)cfg->metric : -1,
                                             .max_new_tokens = cfg->max_new_tokens,
                                             .stop = cfg->stop,
                                             .most = cfg->items,
                                             .shots = cfg->shots};
    if (!cfg->in.seq_len)
        cfg->in.seq_len = longest;
    if ((cfg->in.common.output && kvd_model_seq_len(v->in.model, &cfg->in.seq_len, err)) ||
        check_items_path(cfg, err) || find_chat(v, err))
        return -1;
    snprintf(v->in.label, sizeof v->in.label, "benchmark");
    if (kvd_run_add_inputs(&v->in.run, &cfg->ruler.essay, 1, err) ||
        (cfg->ruler_given && make_ruler(v, &settings, err)))
        return -1;
    for (size_t i = 0; i < cfg->n_benchmark; i++)
        if (kvd_run_add_input(&v->in.run, cfg->benchmark[i], err) ||
            kvd_benchmark_read(&v->items, cfg->benchmark[i], &settings, err))
            return -1;
    return 0;
}

static int write_items(tasks_run *v, kvd_err *err)
{
    kvd_inputs *const in = &v->in;
    return kvd_inputs_open_model(in, err) || kvd_inputs_open_tokenizer(in, program, err) ||
           read_items(v, err);
}

static int open_inputs(tasks_run *v, kvd_err *err)
{
    kvd_tasks_options *const cfg = v->cfg;
    kvd_inputs *const in = &v->in;
    if (kvd_inputs_open(in, err) || check_gpus(v, err) || kvd_inputs_resolve_methods(in, err))
        return -1;
    if (kvd_inputs_open_tokenizer(in, program, err)) {
        if (!cfg->in.ids)
            return -1;
        fprintf(stderr, "%s: generated tokens are compared, their texts are not: %s\n", program,
                err->msg);
    }
    return (kvd_tasks_has_benchmark(cfg) ? read_items(v, err) : kvd_inputs_open_corpus(in, err)) ||
           kvd_inputs_find_files(in, err) || kvd_inputs_warn(in, program, err) ||
           kvd_tasks_record(cfg, in, v->chat, generator_name(v), err) ||
           kvd_inputs_make_points(in, isnan(cfg->in.target), err) ||
           kvd_inputs_check_plans(in, program, err);
}

/* Returns the measure that option --target-metric names. Returns KVD_N_FREE_MEASURES if the option
 * names a benchmark's score. */
static kvd_task_measure target_measure(const tasks_run *v)
{
    int m = 0;
    while (m < KVD_N_FREE_MEASURES && strcmp(kvd_task_measures[m].name, target_metric(v)))
        m++;
    return (kvd_task_measure)m;
}

static const kvd_rows *rows_of(const tasks_run *v)
{
    return v->scores ? kvd_benchmark_table_rows(v->scores) : kvd_task_table_rows(v->table);
}

/* Fails if the uncompressed model's score is not above 0, because --target asks for a share of that
 * score. */
static int check_reference(const tasks_run *v, kvd_err *err)
{
    const kvd_task_measure m = target_measure(v);
    const kvd_rows *const rows = rows_of(v);
    kvd_interval score = {NAN, NAN, NAN};
    size_t n = v->items.n;
    if (v->scores)
        score.value = kvd_row_real(rows, kvd_rows_count(rows) - 1, "score");
    if (!v->scores) {
        n = v->tasks.items[kvd_task_measures[m].task].n_items;
        if (kvd_task_interval(&v->tasks, m, &v->tasks.reference, NULL, v->in.run.seed, &score, err))
            return -1;
    }
    if (isnan(score.value))
        return kvd_fail(err,
                        "--target-metric %s: the items have no such value, because the run has "
                        "no tokenizer or no references",
                        target_metric(v));
    if (!(score.value > 0))
        return kvd_fail(err,
                        "--target: the uncompressed model has a %s of 0 on all %zu items, so "
                        "there is nothing to keep a share of; choose items that it can answer",
                        target_metric(v), n);
    return 0;
}

static size_t seeds_of(const tasks_run *v, size_t i)
{
    return kvd_plan_draws(&v->cfg->in.method[i].plan) ? v->cfg->in.seeds : 1;
}

static size_t runs_of(const tasks_run *v)
{
    size_t n = 1; /* counts the uncompressed model's run */
    for (size_t i = 0; i < v->cfg->in.n_methods; i++)
        n += v->in.n_points[i] * seeds_of(v, i);
    return n;
}

static double parts_of(const tasks_run *v)
{
    return v->cfg->parts ? (double)v->cfg->parts : 1;
}

/* Prints the last progress line. With --part, the total was an estimate: all sequences divided by
 * the number of parts. */
static void end_progress(const tasks_run *v, kvd_progress *progress, int status)
{
    if (v->cfg->parts && !status)
        progress->total = progress->done;
    kvd_progress_end(progress);
}

static void print_row(const tasks_run *v)
{
    char line[KVD_TASK_LINE];
    const kvd_common_options *const o = &v->cfg->in.common;
    const size_t i = kvd_rows_count(kvd_task_table_rows(v->table)) - 1;
    if (o->quiet || o->json)
        return;
    if (!i)
        puts(kvd_task_heading);
    for (int m = 0; m < KVD_N_FREE_MEASURES; m++)
        if (kvd_task_table_line(v->table, i, (kvd_task_measure)m, line))
            puts(line);
    fflush(stdout);
}

/* Adds a table row for each of n runs of a compression method with different random seeds. If n >
 * 1, first adds a row with their means. */
static int add_rows(tasks_run *v, const char *purpose, const kvd_point *point, const kvd_plan *plan,
                    const kvd_task_result *result, size_t n, kvd_err *err)
{
    double spread[KVD_N_FREE_MEASURES];
    kvd_task_result mean = {.cache_share = 0};
    int status = 0;
    if (n > 1) {
        status = kvd_task_results_mean(&v->tasks, result, n, &mean, spread, err) ||
                 kvd_task_table_add(v->table, purpose, point, plan, &mean, n, spread, err);
        if (!status)
            print_row(v);
    }
    for (size_t k = 0; !status && k < n; k++) {
        status = kvd_task_table_add(v->table, n > 1 ? "seed" : purpose, point, &plan[k], &result[k],
                                    1, NULL, err);
        if (!status)
            print_row(v);
    }
    kvd_task_result_release(&mean);
    return status ? -1 : 0;
}

enum { KVD_RUN_NAME = 160 };

/* Writes the name under which results for parameter values `point` and random seed number k are
 * saved. `t`: search by option --target that chose the values, or NULL if the user gave them. */
static const char *name_of(const tasks_run *v, const kvd_method_target *t, const kvd_point *point,
                           size_t k, char name[KVD_RUN_NAME])
{
    size_t i = 0;
    if (t) {
        snprintf(name, KVD_RUN_NAME, "method %td, %s %.17g, seed %zu",
                 t->method - v->cfg->in.method, t->rate.name,
                 t->rate.p ? point->overall_p : kvd_method_tradeoff_value(point->method, &t->rate),
                 k);
        return name;
    }
    while (i < v->cfg->in.n_methods &&
           !(point >= v->in.point[i] && point < v->in.point[i] + v->in.n_points[i]))
        i++;
    snprintf(name, KVD_RUN_NAME, "method %zu, point %zu, seed %zu", i,
             (size_t)(point - v->in.point[i]), k);
    return name;
}

static const char *purpose_of(const kvd_method_target *t)
{
    return t ? "target-search" : "point";
}

static int run_point(tasks_run *v, const kvd_method_target *t, const kvd_point *point, size_t n,
                     kvd_progress *progress, kvd_err *err)
{
    kvd_plan *const plan = calloc(n, sizeof *plan);
    kvd_task_result *const result = calloc(n, sizeof *result);
    char name[KVD_RUN_NAME];
    int status = plan && result ? 0 : kvd_no_memory(err, "results of seeds", n * sizeof *result);
    for (size_t k = 0; !status && k < n; k++) {
        status = kvd_inputs_open_plan(&v->in, point, k, &plan[k], err);
        if (!status && k == 0)
            print_path(v, v->tasks.generator, point, &plan[k]);
        if (status || kvd_task_run_plan(&v->tasks, name_of(v, t, point, k, name), &plan[k],
                                        &result[k], progress, err)) {
            status = kvd_in(err, "method '%s'", kvd_method_name(point->method));
            v->in.unsuited |= result[k].ran;
            v->in.inert = result[k].ran;
        }
    }
    if (!status && !v->cfg->parts)
        status = add_rows(v, purpose_of(t), point, plan, result, n, err);
    for (size_t k = 0; plan && result && k < n; k++) {
        kvd_plan_close(&plan[k]);
        kvd_task_result_release(&result[k]);
    }
    free(plan);
    free(result);
    return status;
}

static int check_prompts(tasks_run *v, const kvd_continuations *run, kvd_err *err)
{
    return kvd_inputs_check_prompts(&v->in, run->offset, run->n_sequences, SIZE_MAX, program, err);
}

static int run_methods(tasks_run *v, kvd_err *err)
{
    const kvd_tasks_options *const cfg = v->cfg;
    kvd_progress progress;
    if (kvd_tasks_items(cfg, v->in.corpus, v->in.tokenizer, v->in.run.seed, &v->tasks, err))
        return -1;
    for (int t = 0; t < KVD_N_FREE_TASKS; t++)
        if (v->tasks.items[t].n_items && check_prompts(v, &v->tasks.items[t].run, err))
            return -1;
    v->tasks.journal = v->journal;
    kvd_progress_start(&progress, "tasks", "sequences",
                       (double)kvd_task_run_sequences(&v->tasks) * (double)runs_of(v) / parts_of(v),
                       cfg->in.common.quiet);
    const kvd_generator_spec spec = generator_of(v);
    int status =
        kvd_task_run_init(&v->tasks, v->in.checkpoint, v->in.tokenizer, &spec, &progress, err) ||
        !(v->table =
              kvd_task_table_new(&v->tasks, v->in.model, v->in.label, v->in.files.calibration.label,
                                 cfg->in.seeds > 1, v->in.run.seed, err)) ||
        (!isnan(cfg->in.target) && check_reference(v, err));
    for (size_t i = 0; i < cfg->in.n_methods; i++)
        for (size_t j = 0; !status && j < v->in.n_points[i]; j++)
            status = run_point(v, NULL, &v->in.point[i][j], seeds_of(v, i), &progress, err) &&
                     kvd_inputs_leave_out(&v->in, i, program, err);
    end_progress(v, &progress, status);
    return status ? -1 : 0;
}

static int score_point(tasks_run *v, const kvd_method_target *t, const kvd_point *point,
                       kvd_progress *progress, kvd_err *err)
{
    kvd_plan plan = {0};
    kvd_benchmark_result result = {0};
    char name[KVD_RUN_NAME], line[KVD_BENCHMARK_LINE];
    const kvd_common_options *const o = &v->cfg->in.common;
    const kvd_rows *const rows = kvd_benchmark_table_rows(v->scores);
    size_t i = kvd_rows_count(rows);
    int status = kvd_inputs_open_plan(&v->in, point, 0, &plan, err);
    if (!status)
        print_path(v, v->benchmark.generator, point, &plan);
    status = status || kvd_benchmark_run_plan(&v->benchmark, name_of(v, t, point, 0, name), &plan,
                                              &result, progress, err);
    if (status) {
        status = kvd_in(err, "method '%s'", kvd_method_name(point->method));
        v->in.unsuited |= result.ran;
        v->in.inert = result.ran;
    } else if (!v->cfg->parts)
        status = kvd_benchmark_table_add(v->scores, purpose_of(t), point, &plan, &result, err);
    for (; !status && !o->quiet && !o->json && i < kvd_rows_count(rows); i++) {
        if (!i)
            puts(kvd_benchmark_heading);
        puts(kvd_benchmark_table_line(v->scores, i, line));
    }
    fflush(stdout);
    kvd_plan_close(&plan);
    kvd_benchmark_result_release(&v->benchmark, &result);
    return status;
}

/* Runs all items of a benchmark, with the uncompressed model first, then with each method. */
static int run_benchmark(tasks_run *v, kvd_err *err)
{
    const kvd_tasks_options *const cfg = v->cfg;
    const kvd_benchmark_run_settings settings = {.compress_at = cfg->compress_at,
                                                 .turns = cfg->turns,
                                                 .max_len = cfg->in.seq_len,
                                                 .generator = generator_of(v),
                                                 .no_special = cfg->in.no_special,
                                                 .chat = v->chat};
    size_t cut = 0;
    if (kvd_benchmark_run_init(&v->benchmark, &v->items, v->in.checkpoint, v->in.tokenizer,
                               &settings, err) ||
        check_prompts(v, &v->benchmark.run, err) ||
        !(v->scores = kvd_benchmark_table_new(&v->benchmark, v->in.model,
                                              v->in.files.calibration.label, v->in.run.seed, err)))
        return -1;
    v->benchmark.journal = v->journal;
    kvd_inputs_warn_positions(&v->in, kvd_continuations_longest(&v->benchmark.run), program);
    for (size_t i = 0; i < v->items.n; i++)
        cut += v->benchmark.cut[i];
    if (cut && !cfg->in.common.quiet)
        fprintf(stderr, "%s: %zu of %zu prompts lose their middle to fit %zu tokens (--seq-len)\n",
                program, cut, v->items.n, cfg->in.seq_len);
    kvd_progress progress;
    kvd_progress_start(&progress, "benchmark", "sequences",
                       (double)v->benchmark.run.n_sequences * (double)(runs_of(v) - 1) /
                           parts_of(v),
                       cfg->in.common.quiet);
    int status = 0;
    for (int none = 1; none >= 0; none--) {
        for (size_t i = 0; i < cfg->in.n_methods; i++)
            for (size_t j = 0; !status && j < v->in.n_points[i]; j++)
                if (kvd_method_is_none(&cfg->in.method[i]) == none)
                    status = score_point(v, NULL, &v->in.point[i][j], &progress, err) &&
                             kvd_inputs_leave_out(&v->in, i, program, err);
        if (!status && none && !isnan(cfg->in.target))
            status = check_reference(v, err);
    }
    end_progress(v, &progress, status);
    return status;
}

static int measure_setting(void *ctx, const kvd_method_target *t, const kvd_point *point,
                           kvd_target_sample *out, kvd_interval *of_text, kvd_err *err)
{
    tasks_run *const v = ctx;
    const kvd_inputs_options *const in = &v->cfg->in;
    const size_t first = kvd_rows_count(rows_of(v)),
                 seeds = seeds_of(v, (size_t)(t->method - in->method));
    const size_t sequences =
        v->scores ? v->benchmark.run.n_sequences : seeds * kvd_task_run_sequences(&v->tasks);
    kvd_progress progress;
    (void)of_text;
    kvd_progress_start(&progress, "target", "sequences", (double)sequences, in->common.quiet);
    int status = v->scores ? score_point(v, t, point, &progress, err)
                           : run_point(v, t, point, seeds, &progress, err);
    kvd_progress_end(&progress);
    if (!status)
        status = v->scores
                     ? kvd_benchmark_table_share(v->scores, &out->share, err)
                     : kvd_task_table_share(v->table, first, target_measure(v), &out->share, err);
    if (status)
        return kvd_inputs_pass_value(&v->in, t, point, out, err);
    /* row of the result table that has the mean score over benchmark tasks, or over random seeds */
    const size_t row = v->scores ? kvd_rows_count(rows_of(v)) - 1 : first;
    const char *const share =
        kvd_method_selects(t->method) ? "free_read_share" : "free_cache_share";
    out->saving = 1 - kvd_row_real(rows_of(v), row, share) * (double)kvd_dtype_bytes(KVD_F16) /
                          (double)kvd_dtype_bytes(in->cache);
    return 0;
}

static int search_targets(tasks_run *v, kvd_err *err)
{
    const kvd_tasks_options *const cfg = v->cfg;
    const kvd_task_measure m = target_measure(v);
    const bool own = m < KVD_N_FREE_MEASURES && kvd_task_measures[m].own;
    for (size_t i = 0; i < cfg->in.n_methods; i++) {
        kvd_method_target *const t = &v->target[v->n_targets];
        char line[2 * KVD_ACCURACY_LINE];
        if (kvd_method_is_none(&cfg->in.method[i]) || v->in.left_out[i])
            continue;
        if (kvd_method_target_add(v->target, &v->n_targets, &cfg->in.method[i], cfg->in.target_key,
                                  err))
            return -1;
        if (t == &v->target[v->n_targets])
            continue;
        const int status =
            kvd_method_target_search(t, v->in.n_points[i] ? v->in.point[i] : NULL, cfg->in.target,
                                     0, NULL, measure_setting, v, err);
        if (kvd_inputs_end_search(&v->in, t, status, err))
            return -1;
        if (t->failed)
            continue;
        if (kvd_method_target_write(&v->file, t, target_metric(v), own, err))
            return -1;
        if (!cfg->in.common.quiet && !cfg->in.common.json)
            puts(
                kvd_accuracy_target_line(t->name, t->rate.name, target_metric(v), &t->found, line));
    }
    return kvd_inputs_check_searched(&v->in, v->target, v->n_targets, err);
}

static int describe_file(tasks_run *v, kvd_err *err)
{
    kvd_h5 *const f = &v->file;
    return kvd_model_info_write(f, &v->in.info, err) ||
           kvd_h5_put_text(f, "/", "label", v->in.label, err) ||
           (v->in.corpus && kvd_field_write_corpus_hash(f, kvd_corpus_hash(v->in.corpus), err)) ||
           (v->cfg->in.resume && kvd_h5_put_text(f, "/", "run_key", v->key.text, err)) ||
           kvd_h5_put_text(f, "/", "free_running_engine", generator_name(v), err) ||
           kvd_h5_put_int(f, "/", "calibrated_on_same_text", v->in.same_text, err);
}

static int print_json(const tasks_run *v, kvd_err *err)
{
    json_t *const all =
        json_pack("{s:s, s:s, s:s, s:s, s:s, s:b, s:o}", "program", program, "output",
                  v->cfg->in.common.output, "model", v->in.info.name, "label", v->in.label,
                  "engine", generator_name(v), "calibrated_on_same_text", v->in.same_text, "rows",
                  kvd_rows_json(rows_of(v)));
    if (all && v->n_targets)
        json_object_set_new(all, "target",
                            kvd_accuracy_targets_json(v->target, v->n_targets, target_metric(v)));
    return kvd_json_print(all, err);
}

static int print_end(const tasks_run *v, kvd_err *err)
{
    const kvd_common_options *const o = &v->cfg->in.common;
    if (!o->quiet && !o->json)
        kvd_print_legend(v->scores ? kvd_benchmark_legend : kvd_task_legend, &v->cfg->in);
    if (v->scores)
        kvd_benchmark_table_warn_zeros(v->scores, program);
    kvd_inputs_warn_left(&v->in);
    return o->json ? print_json(v, err) : 0;
}

/* Opens the journal, a file of generated sequences. With --part, which runs a part of the tasks,
 * opens that part's own journal. Without --part, also reads the journals of all parts. */
static int open_journal(tasks_run *v, kvd_err *err)
{
    const kvd_tasks_options *const cfg = v->cfg;
    char *path, parts[64] = "";
    if ((cfg->parts
             ? asprintf(&path, "%s.items.%zu-of-%zu", cfg->in.common.output, cfg->part, cfg->parts)
             : asprintf(&path, "%s.items", cfg->in.common.output)) < 0)
        return kvd_no_memory(err, "a path", strlen(cfg->in.common.output));
    if (!cfg->parts || !kvd_output_begin(&v->part, path, err))
        v->journal = kvd_journal_open(path, !cfg->parts, &v->key, err);
    free(path);
    if (!v->journal)
        return -1;
    const size_t n = kvd_journal_n_parts(v->journal);
    if (n)
        snprintf(parts, sizeof parts, " and %zu file%s of parts", n, n > 1 ? "s" : "");
    if (kvd_journal_n_saved(v->journal) && !cfg->in.common.quiet)
        fprintf(stderr, "%s: going on after %zu sequences of '%s'%s\n", program,
                kvd_journal_n_saved(v->journal), kvd_journal_path(v->journal), parts);
    return 0;
}

/* Runs only the items of this process's part (--part). Saves the scores in that part's journal. */
static int run_part(tasks_run *v, kvd_err *err)
{
    const kvd_tasks_options *const cfg = v->cfg;
    if (open_journal(v, err) ||
        (kvd_tasks_has_benchmark(cfg) ? run_benchmark(v, err) : run_methods(v, err)) ||
        kvd_inputs_check_left(&v->in, err))
        return -1;
    kvd_inputs_warn_left(&v->in);
    if (!cfg->in.common.quiet)
        fprintf(stderr,
                "%s: part %zu of %zu is complete in '%s'; after all parts, the same command with "
                "--resume in place of --part makes '%s'\n",
                program, cfg->part, cfg->parts, kvd_journal_path(v->journal),
                cfg->in.common.output);
    return 0;
}

static int work(tasks_run *v, kvd_err *err)
{
    const kvd_tasks_options *const cfg = v->cfg;
    if (!cfg->in.common.output)
        return write_items(v, err);
    const bool saves = cfg->in.resume || cfg->parts;
    if (open_inputs(v, err) || (saves ? kvd_inputs_add_key(&v->in, &v->key, err)
                                      : kvd_inputs_warn_saved(&v->in, ".items", program, err)))
        return -1;
    bool complete = false;
    if (saves && kvd_inputs_find_complete(&v->in, &kvd_schema_tasks, &v->key, &complete, err))
        return -1;
    if (complete)
        return kvd_inputs_nothing_to_do(&v->in, program, err);
    if (cfg->parts)
        return run_part(v, err);
    /* Records the number of GPUs only after --resume has compared options, because a resumed run
     * may use another number of GPUs. */
    return (v->in.run.gpu[0] &&
            kvd_run_parameter(&v->in.run, "gpus", err, "%d", cfg->gpus ? cfg->gpus : 1)) ||
           kvd_h5_create(&v->file, cfg->in.common.output, &kvd_schema_tasks, &v->in.run, err) ||
           (cfg->in.resume && open_journal(v, err)) || describe_file(v, err) ||
           (kvd_tasks_has_benchmark(cfg) ? run_benchmark(v, err) : run_methods(v, err)) ||
           kvd_inputs_check_left(&v->in, err) ||
           (!isnan(cfg->in.target) && search_targets(v, err)) ||
           (v->scores ? kvd_benchmark_table_write(&v->file, v->scores, err)
                      : kvd_task_table_write(&v->file, v->table, err)) ||
           kvd_h5_finish(&v->file, err) || (v->journal && kvd_journal_remove(v->journal, err)) ||
           print_end(v, err);
}

/* Adds to the error message of a failed run which of its results are saved. */
static void tell_kept(const tasks_run *v, kvd_err *err)
{
    const kvd_journal *const j = v->journal;
    if (v->cfg->in.common.output && kvd_inputs_may_continue(&v->in))
        kvd_in_kept(err, j ? kvd_journal_n_saved(j) : 0, "sequence", j ? kvd_journal_path(j) : NULL,
                    v->cfg->in.resume || v->cfg->parts);
}

static void release(tasks_run *v)
{
    kvd_h5_close(&v->file, false);
    kvd_task_table_free(v->table);
    kvd_task_run_release(&v->tasks);
    kvd_benchmark_table_free(v->scores);
    kvd_benchmark_run_release(&v->benchmark);
    kvd_benchmark_release(&v->items);
    kvd_journal_close(v->journal);
    if (v->cfg->parts)
        kvd_output_release(&v->part, false);
    kvd_inputs_release(&v->in);
}

int main(int argc, char **argv)
{
    static kvd_tasks_options cfg;
    static tasks_run v;
    kvd_err err = {""};
    kvd_tasks_parse(argc, argv, &cfg);
    v.cfg = &cfg;
    v.in.cfg = &cfg.in;
    v.in.searches = !isnan(cfg.in.target);
    int status = kvd_run_start(&v.in.run, program, argc, argv, &cfg.in.common, &err);
    if (!status && (status = work(&v, &err)))
        tell_kept(&v, &err);
    release(&v);
    kvd_tasks_options_release(&cfg);
    return kvd_run_exit(program, status, &err);
}

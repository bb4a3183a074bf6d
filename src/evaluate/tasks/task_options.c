#include "evaluate/tasks/task_options.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/files/output.h"
#include "evaluate/target.h"
#include "evaluate/tasks/benchmark.h"
#include "methods/grid.h"
#include "model/text/text_options.h"

/* Stores the text of option --stop, in which \n means a line feed and \\ a backslash. */
static int add_stop(void *config, const char *text, kvd_err *err)
{
    kvd_tasks_options *const cfg = config;
    char *to = malloc(strlen(text) + 1);
    if (!to)
        return kvd_no_memory(err, "--stop", strlen(text));
    free(cfg->stop);
    cfg->stop = to;
    for (const char *s = text; *s; s++) {
        if (*s == '\\' && s[1] != 'n' && s[1] != '\\')
            return kvd_fail(err, "--stop: '%s' has a backslash before neither n nor a backslash",
                            text);
        *to++ = *s == '\\' ? *++s == 'n' ? '\n' : '\\' : *s;
    }
    *to = '\0';
    return 0;
}

static int set_part(void *config, const char *text, kvd_err *err)
{
    kvd_tasks_options *const cfg = config;
    unsigned part = 0, parts = 0;
    int end = 0;
    if (sscanf(text, "%4u/%4u%n", &part, &parts, &end) != 2 || text[end] || part < 1 ||
        part > parts)
        return kvd_fail(err, "--part %s: expected I/N with 1 <= I <= N <= 9999, such as 2/8", text);
    cfg->part = part;
    cfg->parts = parts;
    return 0;
}

bool kvd_tasks_has_benchmark(const kvd_tasks_options *cfg)
{
    return cfg->n_benchmark || cfg->ruler_given;
}

/* Names of the scores by which option --target can judge a compression. All of them fall when
 * answers get worse. */
const char *const kvd_target_metric_words[] = {
    "score",         "rouge1",           "edit_similarity",
    "exact",         "reference_rouge1", "reference_edit_similarity",
    "needle_exact",  "needle_prefix",    "needle_agree",
    "class_correct", "class_agree",      NULL};

static int check_target(const kvd_tasks_options *cfg, kvd_err *err)
{
    const bool given[KVD_N_FREE_TASKS] = {
        [KVD_TASK_GENERATE] = cfg->generate > 0,
        [KVD_TASK_NEEDLE] = cfg->needle > 0,
        [KVD_TASK_CLASSIFY] = cfg->classify != NULL,
    };
    static const char *const options[KVD_N_FREE_TASKS] = {"generate", "needle", "classify"};
    const char *const word = kvd_target_metric_words[cfg->target_metric];
    if (!cfg->in.common.output)
        return kvd_fail(err, "--target requires --output; --write-items alone runs no model");
    if (kvd_tasks_has_benchmark(cfg) && cfg->target_metric)
        return kvd_fail(err, "--target-metric %s: items of --benchmark and --ruler have a score",
                        word);
    if (!kvd_tasks_has_benchmark(cfg) && !cfg->target_metric)
        return kvd_fail(err, "--target requires --target-metric with tasks made from texts, such "
                             "as rouge1 with --generate");
    for (int m = 0; m < KVD_N_FREE_MEASURES; m++)
        if (!strcmp(kvd_task_measures[m].name, word) && !given[kvd_task_measures[m].task])
            return kvd_fail(err, "--target-metric %s requires --%s", word,
                            options[kvd_task_measures[m].task]);
    return kvd_target_check_methods(cfg->in.method, cfg->in.method_text, cfg->in.n_methods,
                                    cfg->in.target_key, err);
}

static int check_ruler(const kvd_tasks_options *cfg, kvd_err *err)
{
    const char *hidden = NULL;
    for (size_t k = 0; k < KVD_N_RULER_TASKS; k++)
        if (cfg->ruler.task[k] && kvd_ruler_needs_essay(k))
            hidden = kvd_ruler_words[k];
    if (hidden && !cfg->ruler.essay)
        return kvd_fail(err, "--ruler %s hides needles in a text: give it with --essay", hidden);
    if (!hidden && cfg->ruler.essay)
        return kvd_fail(err, "--essay: no task of --ruler hides needles in a text");
    if (!cfg->in.common.output && (cfg->in.n_methods || cfg->n_benchmark || cfg->in.resume))
        return kvd_fail(err, "%s requires --output; --write-items alone runs no model",
                        cfg->in.n_methods  ? "--method"
                        : cfg->n_benchmark ? "--benchmark"
                                           : "--resume");
    const kvd_output_name outputs[] = {{"--output", cfg->in.common.output, NULL},
                                       {"--write-items", cfg->write_items, NULL}};
    return kvd_output_distinct(outputs, 2, err);
}

static int check_usage(void *config, kvd_err *err)
{
    kvd_tasks_options *const cfg = config;
    cfg->in.generates = true;
    if (cfg->ruler_given && check_ruler(cfg, err))
        return -1;
    if (cfg->in.n_field > 1)
        return kvd_fail(err, "--field: kvdim-tasks takes one for all texts");
    if (cfg->generate && !cfg->reference && !cfg->in.prompt)
        return kvd_fail(err, "--generate requires a --prompt to continue, or --reference");
    if (cfg->chat != KVD_CHAT_NONE && cfg->in.no_special)
        return kvd_fail(err, "--no-special: --chat %s writes the special tokens of its template",
                        kvd_chat_words[cfg->chat]);
    if (cfg->in.sweep && kvd_inputs_check_sweep(&cfg->in, err))
        return -1;
    if (!isnan(cfg->in.target))
        return check_target(cfg, err);
    return cfg->in.sweep ? 0 : kvd_inputs_check_ranks(&cfg->in, err);
}

#define T         kvd_tasks_options
#define I         kvd_inputs_options
#define ALL_TASKS "generate needle classify"
#define TEXTS     "text ids generate needle classify seeds prompt tokens label"

static const kvd_option options[] = {
    {.help = "Input"},
    KVD_OPTION_MODEL(I),
    KVD_OPTIONS_TEXT(I, "ids"),
    KVD_OPTION_IDS(I, NULL),
    {"field", .type = KVD_OPT_CALL, .arg = "NAME", .call = kvd_inputs_call_field,
     .requires = "text", .otherwise = "text", .help = KVD_FIELD_HELP},
    {"no-special", .type = KVD_OPT_FLAG, KVD_INTO(I, no_special),
     .requires = "text benchmark ruler",
     .help = "Leave out the special tokens (BOS, ...) that the tokenizer puts around a document or "
             "before a prompt"},
    KVD_OPTION_TOKENS(I, "all", "Stop after N tokens"),
    {"seq-len", .type = KVD_OPT_WHOLE, KVD_INTO(I, seq_len), .low = 2, .high = 1 << 30,
     .otherwise = "512 tokens, or the model's longest; with --benchmark and --ruler the "
                  "model's longest",
     .help =
         "Cut documents into sequences of N tokens, and the prompts of --benchmark so that they "
         "and their answers have at most N; make those of --ruler for N"},
    {"prompt", .type = KVD_OPT_WHOLE, KVD_INTO(I, prompt), .high = 1 << 30, .initial = "0",
     .unit = "tokens",
     .help =
         "Number of first tokens of a sequence that --generate takes as the prompt. They attend to "
         "each other uncompressed, then the cache is compressed"},
    KVD_OPTION_LABEL(I, "from the file names"),

    {.help = "Methods"},
    KVD_OPTION_METHOD(kvd_inputs_call_method, KVD_METHODS_OF_FILES,
                      ". The uncompressed model, none, always runs too"),
    KVD_OPTION_PLUGIN,
    KVD_OPTION_LIST_METHODS,
    KVD_OPTIONS_METHOD_FILES(I),
    {"seeds", .type = KVD_OPT_WHOLE, KVD_INTO(I, seeds), .low = 1, .high = 1000, .initial = "1",
     .help = "Run methods that draw random numbers under N seeds, --seed and those after it, and "
             "give the mean and the spread"},

    {.help = "Published benchmarks"},
    {"benchmark", .type = KVD_OPT_TEXTS, .arg = "FILE", KVD_INTO_LIST(T, benchmark, n_benchmark),
     .excludes = TEXTS,
     .help = "Run the items of this file: one JSON object per line, or a .json list, as RULER, "
             "LongBench, InfiniteBench, GSM8K and SCBench publish them; docs/tasks.md has the "
             "fields"},
    {"ruler", .type = KVD_OPT_WORDS, .arg = "TASK,...", .words = kvd_ruler_words,
     KVD_INTO(T, ruler.task), KVD_GIVEN(T, ruler_given), .excludes = TEXTS,
     .help = "Make the items of these tasks of RULER for the model's tokenizer: niah_single_1, "
             "niah_single_2, niah_single_3, niah_multikey_1, niah_multikey_2, niah_multikey_3, "
             "niah_multivalue, niah_multiquery, vt, cwe, fwe. A prompt and its answer have at most "
             "--seq-len tokens; RULER's search finds the size. --seed decides all random choices"},
    {"essay", .type = KVD_OPT_TEXT, .arg = "FILE.txt", KVD_INTO(T, ruler.essay),
     .requires = "ruler",
     .help = "Text in which niah_single_2, niah_single_3, niah_multikey_1, niah_multivalue and "
             "niah_multiquery hide their needles; RULER takes the essays of Paul Graham"},
    {"write-items", .type = KVD_OPT_TEXT, .arg = "FILE.jsonl", KVD_INTO(T, write_items),
     .requires = "ruler",
     .help = "Write the items of --ruler in RULER's JSONL form; without --output, only do this"},
    {"form", .type = KVD_OPT_WORD, .words = kvd_benchmark_form_words, KVD_INTO(T, form),
     .initial = "auto", .requires = "benchmark",
     .help = "Benchmark that the files come from, when their fields do not tell"},
    {"shots", .type = KVD_OPT_WHOLE, KVD_INTO(T, shots), .high = KVD_GSM8K_SHOTS, .initial = "0",
     .unit = "examples", .requires = "benchmark",
     .help = "Put the first N examples with chains of thought of Wei et al. (2022) before a "
             "question of GSM8K, in the form of lm-evaluation-harness's gsm8k_cot, which has 8"},
    {"metric", .type = KVD_OPT_WORD, .words = kvd_metric_words, KVD_INTO(T, metric),
     KVD_GIVEN(T, metric_given), .otherwise = "the benchmark's own", .requires = "benchmark ruler",
     .help = "Score of an answer"},
    {"max-new-tokens", .type = KVD_OPT_WHOLE, KVD_INTO(T, max_new_tokens), .low = 1,
     .high = KVD_BENCHMARK_MAX_NEW_TOKENS, .otherwise = "the benchmark's own",
     .requires = "benchmark ruler", .help = "Tokens of an answer, at most"},
    {"stop", .type = KVD_OPT_CALL, .arg = "TEXT", .call = add_stop,
     .otherwise = "the benchmark's own", .requires = "benchmark ruler",
     .help = "End an answer where TEXT begins; '\\n' stands for a line feed"},
    {"compress-at", .type = KVD_OPT_WORD, .words = kvd_compress_at_words, KVD_INTO(T, compress_at),
     .initial = "prompt", .requires = "benchmark ruler",
     .help = "Compress at the end of the whole prompt, where methods see the question, or at the "
             "end of its context, before the question"},
    {"turns", .type = KVD_OPT_WORD, .words = kvd_benchmark_turns_words, KVD_INTO(T, turns),
     .initial = "follow", .requires = "benchmark",
     .help = "Ask several questions about one context one after another on one cache, or each on "
             "a cache of its own"},
    {"chat", .type = KVD_OPT_WORD, .words = kvd_chat_words, KVD_INTO(T, chat), .initial = "none",
     .requires = "benchmark ruler",
     .help = "Put the text of a chat template around context and question, with the answer prefix "
             "after the assistant's header. auto recognises the form of chat_template.jinja or "
             "tokenizer_config.json in the folder MODEL"},

    {.help = "Tasks made from texts"},
    {"generate", .type = KVD_OPT_WHOLE, KVD_INTO(T, generate), .low = 1, .high = 1 << 30,
     .help = "After the --prompt of every sequence that has N more tokens, generate N tokens "
             "greedily; compare them with those of the uncompressed model and with the text"},
    {"reference", .type = KVD_OPT_TEXT, .arg = "FIELD", KVD_INTO(T, reference),
     .requires = "generate", .excludes = "ids tokens",
     .help = "Take whole documents as prompts, and the references from this JSON key or CSV "
             "column"},
    {"needle", .type = KVD_OPT_WHOLE, KVD_INTO(T, needle), .low = 1, .high = 1001,
     .requires = "text",
     .help = "Hide a pass key at N depths of every sequence, shortened to make room, and ask for "
             "it"},
    {"classify", .type = KVD_OPT_TEXT, .arg = "FIELD", KVD_INTO(T, classify), .requires = "text",
     .excludes = "tokens",
     .help = "Read the labels of documents from this JSON key or CSV column, and choose the label "
             "that is likeliest after each document"},
    {"classes", .type = KVD_OPT_TEXT, .arg = "A,B,...", KVD_INTO(T, classes),
     .requires = "classify", .otherwise = "all labels of the documents",
     .help = "Labels to choose from"},
    {"ask", .type = KVD_OPT_TEXT, KVD_INTO(T, ask), .requires = "reference classify",
     .help = "Append TEXT to every document: to the prompt of --reference, after the compressed "
             "document of --classify"},
    {"items", .type = KVD_OPT_WHOLE, KVD_INTO(T, items), .low = 1, .high = 1 << 30,
     .requires = ALL_TASKS " benchmark ruler", .otherwise = "all; with --ruler 500",
     .help = "Use only the first N sequences or documents, or items of each --benchmark; make N "
             "items of each task of --ruler"},

    {.help = "Searches"},
    KVD_OPTIONS_TARGET(I, "of the uncompressed model's score on the same items"),
    {"target-metric", .type = KVD_OPT_WORD, .words = kvd_target_metric_words,
     KVD_INTO(T, target_metric), .initial = "score", .requires = "target",
     .help =
         "Score of which --target keeps a share: that of the benchmark's items, or a measure of "
         "generated text, needles or classes. rouge1, edit_similarity, exact, needle_agree and "
         "class_agree compare with the output of the uncompressed model, the others with the "
         "right answer"},
    KVD_OPTION_SWEEP(I),

    {.help = "Run"},
    KVD_OPTION_COMPUTE(I),
    {"cache", .type = KVD_OPT_WORD, .words = kvd_dtype_words, KVD_INTO(I, cache),
     KVD_GIVEN(I, cache_given), .otherwise = "that of --compute",
     .help = "Type in which compressed keys and values are stored"},
    KVD_OPTION_BATCH(I, "2048 tokens, on a GPU 8192"),
    {"gpus", .type = KVD_OPT_WHOLE, KVD_INTO(T, gpus), .low = 1, .high = 16, .otherwise = "1",
     .help =
         "Number of GPUs of this machine, each with the whole model, that divide the sequences"},
    {"resume", .type = KVD_OPT_FLAG, KVD_INTO(I, resume),
     .help = "Save every sequence in OUT.h5.items when it is done, and continue where an "
             "interrupted run with the same options stopped, also from the files of --part; a "
             "complete OUT.h5 of other options is refused"},
    {"part", .type = KVD_OPT_CALL, .arg = "I/N", .call = set_part, .excludes = "resume json target",
     .requires = "output",
     .help = "Generate one of N parts of the sequences, I from 1, on one of several machines, and "
             "save them in OUT.h5.items.I-of-N; continues an interrupted run of this part. After "
             "all parts, the same command with --resume in place of --part makes OUT.h5"},
    KVD_OPTIONS_COMMON(I, "OUT.h5", "Write the result to OUT.h5, whole or not at all"),
    {0}};

#define DEMO "kvdim-tasks data/models/kvdim-6m --text book.txt "

static const kvd_program program = {
    .name = "kvdim-tasks",
    .summary = "Run tasks in which the model reads its own compressed KV cache: published "
               "benchmarks, generated text, hidden pass keys, classification.",
    .usage = {"MODEL (--benchmark FILE)... -o OUT.h5 [OPTION...]",
              "MODEL --ruler TASK,... (-o OUT.h5 | --write-items FILE.jsonl) [OPTION...]",
              "MODEL (--text FILE... | --ids FILE.csv) -o OUT.h5 [OPTION...]"},
    .any_of = {"MODEL", "output write-items", "text ids benchmark ruler",
               ALL_TASKS " benchmark ruler"},
    .examples =
        {"kvdim-tasks data/models/kvdim-6m --benchmark niah_single_1.jsonl --stop '\\n' "
         "--method h2o,heavy=0.25,recent=0.25 --cache f16 --resume -o niah.h5",
         "kvdim-tasks data/models/kvdim-6m --ruler niah_single_1,vt --items 20 --seq-len 1024 "
         "--method h2o,heavy=0.25,recent=0.25 -o ruler.h5",
         DEMO "--prompt 128 --generate 64 --method h2o,hetero,k=8,v=8 -o generated.h5",
         DEMO "--needle 11 --items 20 --seq-len 512 --method h2o -o needles.h5",
         "kvdim-tasks data/models/kvdim-6m --text reviews.csv --field review --classify "
         "sentiment --ask ' This film is' --method h2o -o classes.h5"},
    .notes = "Past tokens are read as the cache stores them, and every method must show that it "
             "compressed the cache. If other methods remain, one without an effect is left out "
             "with a warning, and the exit status is 0. On a GPU with --compute bf16 the engine of "
             "kvdim-jct runs the methods that it has, and many others that store codes with "
             "these codes on the CPU; the cache of all others is on the CPU.",
    .options = options,
    .check = check_usage};

void kvd_tasks_parse(int argc, char **argv, kvd_tasks_options *cfg)
{
    kvd_options_parse(&program, argc, argv, cfg);
}

void kvd_tasks_options_release(kvd_tasks_options *cfg)
{
    free(cfg->stop);
    kvd_inputs_options_release(&cfg->in);
    kvd_options_release(&program, cfg);
}

int kvd_tasks_items(const kvd_tasks_options *cfg, kvd_corpus *corpus, const kvd_tokenizer *tok,
                    uint64_t seed, kvd_task_run *f, kvd_err *err)
{
    const kvd_task_documents documents = {.text = cfg->in.text,
                                          .n_text = cfg->in.n_text,
                                          .field = cfg->in.field[0],
                                          .ask = cfg->ask,
                                          .no_special = cfg->in.no_special,
                                          .max_len = cfg->in.seq_len,
                                          .most = cfg->items};
    kvd_task_items *const generate = &f->items[KVD_TASK_GENERATE];
    if (cfg->reference &&
        kvd_task_items_references(generate, &documents, cfg->reference, tok, cfg->generate, err))
        return kvd_in(err, "--reference %s", cfg->reference);
    if (cfg->generate && !cfg->reference &&
        kvd_task_items_corpus(generate, corpus, tok, cfg->in.prompt, cfg->generate, cfg->items,
                              err))
        return kvd_in(err, "--generate %zu", cfg->generate);
    if (cfg->needle && kvd_task_items_needles(&f->items[KVD_TASK_NEEDLE], corpus, tok, cfg->needle,
                                              cfg->in.seq_len, cfg->items, seed, err))
        return kvd_in(err, "--needle %zu", cfg->needle);
    if (cfg->classify && kvd_task_items_classes(&f->items[KVD_TASK_CLASSIFY], &documents,
                                                cfg->classify, cfg->classes, tok, err))
        return kvd_in(err, "--classify %s", cfg->classify);
    return 0;
}

static int record_texts(const kvd_tasks_options *cfg, kvd_inputs *in, kvd_err *err)
{
    kvd_run *const r = &in->run;
    char fields[200];
    kvd_inputs_fields_text(&cfg->in, fields, sizeof fields);
    return kvd_run_parameter(r, "tokens", err, "%zu", kvd_corpus_n_tokens(in->corpus)) ||
           kvd_run_parameter(r, "prompt", err, "%zu", cfg->in.prompt) ||
           kvd_run_parameter(r, "label", err, "%s", in->label) ||
           kvd_run_parameter(r, "field", err, "%s", fields) ||
           kvd_run_parameter(r, "generate", err, "%zu", cfg->generate) ||
           kvd_run_parameter(r, "reference", err, "%s", cfg->reference ? cfg->reference : "") ||
           kvd_run_parameter(r, "needle", err, "%zu", cfg->needle) ||
           kvd_run_parameter(r, "classify", err, "%s", cfg->classify ? cfg->classify : "") ||
           kvd_run_parameter(r, "classes", err, "%s", cfg->classes ? cfg->classes : "") ||
           kvd_run_parameter(r, "ask", err, "%s", cfg->ask ? cfg->ask : "") ||
           kvd_run_parameter(r, "seeds", err, "%zu", cfg->in.seeds);
}

static int record_benchmark(const kvd_tasks_options *cfg, kvd_run *r, const kvd_chat *chat,
                            kvd_err *err)
{
    char ruler[200] = "";
    for (size_t k = 0; k < KVD_N_RULER_TASKS; k++)
        if (cfg->ruler.task[k])
            snprintf(ruler + strlen(ruler), sizeof ruler - strlen(ruler), "%s%s", *ruler ? "," : "",
                     kvd_ruler_words[k]);
    return kvd_run_parameter(r, "ruler", err, "%s", ruler) ||
           kvd_run_parameter(r, "form", err, "%s", kvd_benchmark_form_words[cfg->form]) ||
           kvd_run_parameter(r, "metric", err, "%s",
                             cfg->metric_given ? kvd_metric_words[cfg->metric] : "") ||
           kvd_run_parameter(r, "shots", err, "%zu", cfg->shots) ||
           kvd_run_parameter(r, "max-new-tokens", err, "%zu", cfg->max_new_tokens) ||
           kvd_run_parameter(r, "stop", err, "%s", cfg->stop ? cfg->stop : "") ||
           kvd_run_parameter(r, "compress-at", err, "%s",
                             kvd_compress_at_words[cfg->compress_at]) ||
           kvd_run_parameter(r, "turns", err, "%s", kvd_benchmark_turns_words[cfg->turns]) ||
           kvd_run_parameter(r, "chat", err, "%s", chat ? chat->name : "none");
}

int kvd_tasks_record(const kvd_tasks_options *cfg, kvd_inputs *in, const kvd_chat *chat,
                     const char *engine, kvd_err *err)
{
    kvd_run *const r = &in->run;
    char methods[500];
    kvd_inputs_methods_text(&cfg->in, methods, sizeof methods);
    return kvd_status(
        kvd_run_parameter(r, "method", err, "%s", methods) ||
        kvd_run_parameter(r, "seq-len", err, "%zu", cfg->in.seq_len) ||
        kvd_run_parameter(r, "no-special", err, "%s", cfg->in.no_special ? "yes" : "no") ||
        kvd_run_parameter(r, "cache", err, "%s", kvd_dtype_name(cfg->in.cache)) ||
        kvd_run_parameter(r, "batch", err, "%zu", cfg->in.batch) ||
        kvd_run_parameter(r, "compute", err, "%s", kvd_dtype_name(cfg->in.compute)) ||
        kvd_run_parameter(r, "engine", err, "%s", engine) ||
        kvd_run_parameter(r, "items", err, "%zu", cfg->items) ||
        kvd_run_parameter(r, "target", err, "%g", cfg->in.target) ||
        kvd_run_parameter(r, "target-key", err, "%s",
                          cfg->in.target_key ? cfg->in.target_key : "") ||
        kvd_run_parameter(r, "target-metric", err, "%s",
                          kvd_target_metric_words[cfg->target_metric]) ||
        kvd_run_parameter(r, "sweep", err, "%zu", cfg->in.sweep) ||
        (kvd_tasks_has_benchmark(cfg) ? record_benchmark(cfg, r, chat, err)
                                      : record_texts(cfg, in, err)));
}

#include "collect/options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "collect/collect.h"
#include "common/blas.h"
#include "common/json.h"
#include "common/run.h"
#include "model/checkpoint/family.h"
#include "model/text/text_options.h"

bool kvd_collect_dumps(const kvd_collect_options *o)
{
    return !(o->moments && !o->moments_file) && !(o->attention && !o->attention_file) &&
           !(o->fisher && !o->fisher_file);
}

void kvd_collect_output_names(const kvd_collect_options *cfg,
                              kvd_output_name name[KVD_COLLECT_OUTPUTS])
{
    static const char *const state[] = {".state", ".state.new", NULL};
    name[0] = (kvd_output_name){"-o", cfg->common.output, state};
    name[1] = (kvd_output_name){"--moments", cfg->moments_file, NULL};
    name[2] = (kvd_output_name){"--attention", cfg->attention_file, NULL};
    name[3] = (kvd_output_name){"--fisher", cfg->fisher_file, NULL};
}

static int check_files(const kvd_collect_options *cfg, kvd_err *err)
{
    const struct {
        const char *option;
        /* true if the option is given without =FILE, and therefore writes to the file of option
         * -o */
        bool at_output;
    } out[] = {{"--moments", cfg->moments && !cfg->moments_file},
               {"--attention", cfg->attention && !cfg->attention_file},
               {"--fisher", cfg->fisher && !cfg->fisher_file}};
    for (size_t i = 1; i < sizeof out / sizeof *out; i++)
        for (size_t j = 0; j < i; j++)
            if (out[i].at_output && out[j].at_output)
                return kvd_fail(err, "%s and %s both want '%s': give one of them a file",
                                out[j].option, out[i].option, cfg->common.output);
    kvd_output_name name[KVD_COLLECT_OUTPUTS];
    kvd_collect_output_names(cfg, name);
    return kvd_output_distinct(name, KVD_COLLECT_OUTPUTS, err);
}

static int check_usage(void *config, kvd_err *err)
{
    const kvd_collect_options *const cfg = config;
    const bool cuda = cfg->common.device == KVD_DEVICE_CUDA;
    if (cuda && cfg->attention)
        return kvd_fail(err, "--attention requires --device cpu: the GPU pass gives no scores");
    for (size_t i = 1; i < cfg->n_snapshots; i++)
        if (cfg->snapshots[i] <= cfg->snapshots[i - 1])
            return kvd_fail(err, "--snapshots: %zu after %zu, the counts must rise",
                            cfg->snapshots[i], cfg->snapshots[i - 1]);
    return check_files(cfg, err);
}

static int read_layers(void *config, const char *text, kvd_err *err)
{
    kvd_collect_options *const cfg = config;
    char first[KVD_ARG_FIELD];
    size_t a, b;
    const size_t n = strcspn(text, "-");
    kvd_arg_field(text, n, first);
    if (kvd_arg_size("--layers", first, 0, 999999, &a, err) ||
        kvd_arg_size("--layers", text[n] ? text + n + 1 : first, a, 999999, &b, err))
        return -1;
    cfg->first_layer = (int)a;
    cfg->last_layer = (int)b;
    return 0;
}

static void list_shapes(void)
{
    printf("%-14s %-22s %14s  %s\n", "shape", "model", "weights (1e9)", "published as");
    for (size_t i = 0; i < kvd_shape_count(); i++) {
        const kvd_shape *s = kvd_shape_at(i);
        kvd_config c;
        /* The message is ignored, because parsing cannot fail: a test parses all built-in model
         * shapes. */
        kvd_err ignored;
        if (kvd_config_parse(s->name, s->json, strlen(s->json), &c, &ignored) == 0)
            printf("%-14s %-22s %14.2f  %s\n", s->name, s->title,
                   (double)kvd_family_elements(&c) / 1e9, s->source);
    }
    kvd_err none = {""};
    exit(kvd_run_exit("kvdim-collect", 0, &none));
}

static int find_shape(void *config, const char *text, kvd_err *err)
{
    kvd_collect_options *const cfg = config;
    if (!strcmp(text, "list"))
        list_shapes();
    return (cfg->shape = kvd_shape_find(text, err)) ? 0 : -1;
}

static const char *const ropes[] = {"after", "both", NULL};

#define T kvd_collect_options
/* Defines a command-line option --NAME[=FILE] that asks for one kind of result. `without`: names of
 * the options that cannot be combined with it. */
#define RECORD(name, field, file, without, text)                                                   \
    {                                                                                              \
        name, .type = KVD_OPT_TEXT, .arg = "FILE", .optional = true, KVD_INTO(T, file),            \
              KVD_GIVEN(T, field), .excludes = without, .help = text                               \
    }

static const kvd_option options[] = {
    {.help = "Model"},
    KVD_OPTION_MODEL(T),
    {"shape", .type = KVD_OPT_CALL, .arg = "NAME", .call = find_shape, .excludes = "MODEL text",
     .help = "Measure time and memory with random weights of a published model's shape in place of "
             "MODEL. The weights are the same in every run. --shape list prints the names"},
    {"untrained", .type = KVD_OPT_WHOLE, .arg = "SEED", KVD_INTO(T, untrained), .low = 1,
     .high = 4294967295.0, .excludes = "shape",
     .help =
         "Replace the weights of MODEL by random ones drawn with this seed, and keep its "
         "configuration and tokenizer. Claims about trained models are compared with such a model"},

    {.help = "Input"},
    KVD_OPTIONS_TEXT(T, "ids random"),
    KVD_OPTION_IDS(T, "random"),
    {"random", .type = KVD_OPT_WHOLE, KVD_INTO(T, n_random), .low = 2, .high = 281474976710656.0,
     .help = "Draw N token ids uniformly from the vocabulary, with --seed"},
    KVD_OPTION_FIELD(T),
    KVD_OPTION_NO_SPECIAL(T),
    KVD_OPTION_TOKENS(T, "all", "Stop after N tokens; fewer is an error"),
    KVD_OPTION_SEQ_LEN(T),
    KVD_OPTION_LABEL(T, "from the file names"),

    {.help = "Output"},
    RECORD("moments", moments, moments_file, NULL,
           "Record only second moments, into OUT.h5. With =FILE, write them into FILE in addition "
           "to the dump"),
    RECORD(
        "attention", attention, attention_file, NULL,
        "Record statistics of the attention scores and probabilities of every head, into OUT.h5. "
        "Their size does not grow with the number of tokens. With =FILE, write them into FILE "
        "in addition to the dump or the moments. Runs on the CPU"),
    {"attention-requests", .type = KVD_OPT_WHOLE, KVD_INTO(T, attention_requests), .low = 1,
     .high = 1 << 20, .otherwise = "16", .requires = "attention",
     .help = "For the first N sequences, also record for each token the sum of the attention "
             "probabilities that it receives and the denominator of its softmax"},
    RECORD("fisher", fisher, fisher_file, "resume snapshots",
           "Record squared gradients of the loss with respect to K, V and their weights, and the "
           "products of gradients that waterfill needs, into OUT.h5. With =FILE, write them into "
           "FILE in addition to the other outputs. Runs a backward pass, which takes four to five "
           "times as long as a forward pass, on one GPU at most. The CPU adds squares and "
           "products"),
    {"fisher-rows", .type = KVD_OPT_WHOLE, KVD_INTO(T, fisher_rows), .high = 281474976710656.0,
     .initial = "4096", .unit = "tokens", .requires = "fisher",
     .help = "Keep squared gradients per token for the first N tokens, with which kvquant weights "
             "its numbers"},
    {"snapshots", .type = KVD_OPT_WHOLES, KVD_INTO_LIST(T, snapshots, n_snapshots), .low = 2,
     .high = 281474976710656.0, .requires = "moments",
     .help = "Also write the moments of the first N tokens, rounded up to whole sequences as "
             "--tokens N is, to MOMENTS.N.h5 next to MOMENTS.h5"},
    {"rope", .type = KVD_OPT_WORD, .words = ropes, KVD_INTO(T, rope_both), .initial = "after",
     .help = "Record Q and K after RoPE, or both before and after it"},
    {"layers", .type = KVD_OPT_CALL, .arg = "A-B", .call = read_layers, .otherwise = "all",
     .help = "Record layers A to B, counted from 0"},
    {"dtype", .type = KVD_OPT_WORD, .words = kvd_dtype_words, KVD_INTO(T, dtype), .initial = "f16",
     .help = "Number type of the recorded Q, K and V; a value outside its range is an error"},

    {.help = "Run"},
    KVD_OPTION_BATCH(T, "2048 tokens; on a GPU 16384, or 4096 with --fisher, halved until it fits "
                        "into memory"),
    KVD_OPTION_COMPUTE(T),
    {"gpus", .type = KVD_OPT_WHOLE, KVD_INTO(T, gpus), .low = 1, .high = 16, .otherwise = "1",
     .help = "Number of GPUs that share the model; each MPI process takes N of them"},
    KVD_OPTION_RESUME(T, "Continue where an interrupted run with the same options stopped"),
    {"save-every", .type = KVD_OPT_NUMBER, .arg = "SECONDS", KVD_INTO(T, save_every), .high = 1e9,
     .initial = "5", .unit = "seconds",
     .help = "Time between saves for --resume; 0 saves after every batch"},
    KVD_OPTIONS_COMMON(T, "OUT.h5", "Write the result to OUT.h5, whole or not at all"),
    {0}};

#define DEMO "kvdim-collect data/models/kvdim-6m --text book.txt "

static const kvd_program command_line = {
    .name = "kvdim-collect",
    .summary = "Run a checkpoint over texts and record Q, K and V of every layer and head.",
    .usage = {"(MODEL | --shape NAME) (--text FILE... | --ids FILE.csv | --random N) -o OUT.h5 "
              "[OPTION...]"},
    .any_of = {"MODEL shape", "output", "text ids random"},
    .examples = {DEMO "--tokens 16384 -o act.h5", DEMO "--moments -o mom.h5",
                 "kvdim-collect --shape llama-3.1-8b --random 2048 --moments -o mom.h5",
                 DEMO "--attention -o att.h5", DEMO "--rope both --fisher=fisher.h5 -o act.h5",
                 "mpirun -n 4 " DEMO "--moments -o mom.h5"},
    .notes = "An interrupted run leaves OUT.h5.partial and OUT.h5.state; the same command with "
             "--resume continues it.",
    .options = options,
    .check = check_usage};

void kvd_collect_parse(int argc, char **argv, kvd_collect_options *cfg)
{
    cfg->last_layer = -1;
    kvd_options_parse(&command_line, argc, argv, cfg);
}

void kvd_collect_options_release(kvd_collect_options *cfg)
{
    kvd_options_release(&command_line, cfg);
}

static char *list_snapshots(const kvd_collect_options *cfg, kvd_err *err)
{
    const size_t room = 24 * cfg->n_snapshots + 1;
    char *text = malloc(room);
    size_t used = 0;
    if (!text) {
        kvd_no_memory(err, "a list", room);
        return NULL;
    }
    *text = '\0';
    for (size_t i = 0; i < cfg->n_snapshots; i++)
        used +=
            (size_t)snprintf(text + used, room - used, "%s%zu", i ? "," : "", cfg->snapshots[i]);
    return text;
}

int kvd_collect_record(const kvd_collect_facts *f, kvd_run *run, kvd_run_key *key, kvd_err *err)
{
    const kvd_collect_options *cfg = f->cfg;
    const char *source = cfg->n_text ? "text" : cfg->ids ? "ids" : "random";
    const char *moments = !cfg->moments ? "no" : cfg->moments_file ? "beside the dump" : "only";
    const char *attention = !cfg->attention ? "no" : cfg->attention_file ? "beside" : "only";
    const char *fisher = !cfg->fisher ? "no" : cfg->fisher_file ? "beside" : "only";
    const bool dump = kvd_collect_dumps(cfg);
    char layers[32];
    snprintf(layers, sizeof layers, "%d-%d", cfg->first_layer, cfg->last_layer);
    enum { KEY = 1, PARAMETER = 2 };
    const struct {
        const char *name, *value;
        size_t number; /* value as a number; used if `value` is NULL */
        int where;
    } all[] = {
        {"program", kvd_git_revision(), 0, KEY},
        {"cpu", kvd_cpu_name(), 0, KEY},
        {"blas", kvd_blas_core(), 0, KEY},
        {"model", f->model, 0, KEY},
        {"corpus", f->corpus, 0, KEY},
        {"source", source, 0, PARAMETER},
        {"field", cfg->field ? cfg->field : "", 0, PARAMETER},
        {"no-special", cfg->no_special ? "yes" : "no", 0, PARAMETER},
        {"untrained", NULL, cfg->untrained, PARAMETER},
        {"tokens", NULL, f->n_tokens, KEY | PARAMETER},
        {"seq-len", NULL, cfg->seq_len, KEY | PARAMETER},
        {"layers", layers, 0, KEY | PARAMETER},
        {"rope", cfg->rope_both ? "both" : "after", 0, KEY | PARAMETER},
        {"moments", moments, 0, KEY | PARAMETER},
        {"attention", attention, 0, KEY | PARAMETER},
        {"attention-requests", NULL, cfg->attention_requests, KEY | PARAMETER},
        {"fisher", fisher, 0, KEY | PARAMETER},
        {"fisher-rows", NULL, cfg->fisher ? cfg->fisher_rows : 0, KEY | PARAMETER},
        {"dtype", dump ? kvd_dtype_name(cfg->dtype) : "f64", 0, KEY | PARAMETER},
        {"label", f->label, 0, KEY | PARAMETER},
        {"batch", NULL, cfg->batch, KEY | PARAMETER},
        {"threads", NULL, (size_t)run->threads, KEY | PARAMETER},
        {"ranks", NULL, (size_t)f->ranks, KEY | PARAMETER},
        {"device", cfg->common.device == KVD_DEVICE_CUDA ? "cuda" : "cpu", 0, KEY | PARAMETER},
        {"gpu", f->gpu, 0, KEY},
        {"compute", kvd_dtype_name(cfg->compute), 0, KEY | PARAMETER},
        {"gpus", NULL, (size_t)cfg->gpus, KEY | PARAMETER},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        char number[32];
        snprintf(number, sizeof number, "%zu", all[i].number);
        const char *value = all[i].value ? all[i].value : number;
        if ((all[i].where & PARAMETER && kvd_run_parameter(run, all[i].name, err, "%s", value)) ||
            (all[i].where & KEY && kvd_run_key_add(key, err, all[i].name, "%s", value)))
            return -1;
    }
    char *snapshots = list_snapshots(cfg, err);
    const int status = snapshots ? kvd_run_parameter(run, "snapshots", err, "%s", snapshots) : -1;
    free(snapshots);
    return status;
}

typedef struct {
    double forward, backward, record, write; /* percent of the run's time in each kind of work */
} shares;

static shares shares_of(const kvd_collect_summary *s)
{
    const double write = s->times.write + s->save_s,
                 all = s->times.forward + s->times.backward + s->times.record + write;
    const double percent = all > 0 ? 100 / all : 0;
    return (shares){s->times.forward * percent, s->times.backward * percent,
                    s->times.record * percent, write * percent};
}

static double rate_of(const kvd_collect_summary *s)
{
    const size_t n = kvd_corpus_n_tokens(s->corpus) - s->resumed_tokens;
    return s->loop_s > 0 ? (double)n / s->loop_s : 0;
}

static double file_bytes(const char *path)
{
    struct stat st;
    return path && !stat(path, &st) ? (double)st.st_size : 0;
}

static int print_json(const char *program, const kvd_collect_summary *s, kvd_err *err)
{
    const kvd_outputs *o = s->out;
    const shares share = shares_of(s);
    json_t *j = json_pack(
        "{s:s, s:s, s:b, s:s, s:s?, s:s?, s:s?, s:s?, s:s?, s:I, s:I, s:I, s:I, s:I, s:b, s:f, "
        "s:f, s:f, s:f, "
        "s:f, s:{s:f, s:f, s:f, s:f}}",
        "program", program, "model", o->sums.model.name, "random_weights",
        (int)kvd_model_info_random(&o->sums.model), "device", s->device, "engine", s->engine,
        "activations", o->dump_path, "moments", o->moments_path, "attention", o->stats_path,
        "fisher", o->fisher_path, "tokens", (json_int_t)kvd_corpus_n_tokens(s->corpus), "sequences",
        (json_int_t)kvd_corpus_n_sequences(s->corpus), "documents",
        (json_int_t)kvd_corpus_n_documents(s->corpus), "tokens_left_out",
        (json_int_t)kvd_corpus_n_dropped(s->corpus), "resumed_tokens",
        (json_int_t)s->resumed_tokens, "nothing_to_do", (int)s->nothing_to_do, "bytes",
        file_bytes(o->dump_path) + file_bytes(o->moments_path) + file_bytes(o->stats_path) +
            file_bytes(o->fisher_path),
        "seconds", s->total_s, "start_seconds", s->start_s, "loop_seconds", s->loop_s,
        "tokens_per_s", rate_of(s), "time_percent", "forward", share.forward, "backward",
        share.backward, "record", share.record, "write", share.write);
    return kvd_json_print(j, err);
}

static void print_lines(const kvd_collect_summary *s)
{
    const kvd_outputs *o = s->out;
    const shares share = shares_of(s);
    const size_t sequences = kvd_corpus_n_sequences(s->corpus),
                 documents = kvd_corpus_n_documents(s->corpus);
    printf("%zu tokens in %zu sequence%s of %zu document%s (%s)\n", kvd_corpus_n_tokens(s->corpus),
           sequences, sequences == 1 ? "" : "s", documents, documents == 1 ? "" : "s",
           o->sums.label);
    if (kvd_model_info_random(&o->sums.model))
        printf("%s: %s\n", o->sums.model.name, kvd_random_weights_note);
    if (kvd_corpus_n_dropped(s->corpus))
        printf("%zu tokens left out: alone at the end of their document\n",
               kvd_corpus_n_dropped(s->corpus));
    if (s->resumed_tokens)
        printf("%zu tokens were there from the interrupted run\n", s->resumed_tokens);
    if (o->want_dump)
        printf("activations %s, %.1f MB, %s\n", o->dump_path, file_bytes(o->dump_path) / 1e6,
               kvd_dtype_name(s->cfg->dtype));
    if (o->want_moments)
        printf("moments %s, %.1f MB\n", o->moments_path, file_bytes(o->moments_path) / 1e6);
    if (o->want_stats)
        printf("attention %s, %.1f MB, %zu of %zu requests token by token\n", o->stats_path,
               file_bytes(o->stats_path) / 1e6, o->stats.n_kept, o->stats.n_requests);
    if (o->want_fisher)
        printf("squared gradients %s, %.1f MB, %zu tokens one by one; loss %.4f nats per predicted "
               "token\n",
               o->fisher_path, file_bytes(o->fisher_path) / 1e6, o->fisher.n_rows,
               o->fisher.loss / (double)o->fisher.n_predicted);
    for (size_t i = 0; i < s->snapshots->n; i++)
        printf("snapshot %s, %zu tokens\n", s->snapshots->at[i].path, s->snapshots->at[i].n_tokens);
    printf("on %s\n", s->engine);
    printf("%.1f s, %.0f tokens/s; time: forward %.1f %%, ", s->total_s, rate_of(s), share.forward);
    if (o->want_fisher)
        printf("backward %.1f %%, ", share.backward);
    printf("record %.1f %%, write %.1f %%\n", share.record, share.write);
}

int kvd_collect_summarise(const char *program, const kvd_collect_summary *s, kvd_err *err)
{
    if (s->cfg->common.json)
        return print_json(program, s, err);
    if (!s->cfg->common.quiet && !s->nothing_to_do)
        print_lines(s);
    return 0;
}

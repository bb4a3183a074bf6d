/* Compares token eviction in the CUDA engine with the CPU engine: which tokens are kept, and the
 * logits. */

#include "dims_fixture.h"
#include "evict_engine_case.h"
#include "make_dump.h"

/* Compares a method in the CUDA engine with the CPU engine. bar: median distance of the two
 * engines' logits without a method. */
static void against_cpu(const kvd_checkpoint *c, const load *l, const char *text, double bar)
{
    const kvd_config *const config = kvd_checkpoint_config(c);
    kvd_err err = {""};
    kvd_plan plan;
    result want = result_make(l, config), got = result_make(l, config),
           again = result_make(l, config);
    char name[160], detail[300];
    if (plan_of(text, config, &plan, &err) || by_cpu(c, l, &plan, &want, &err)) {
        test_result(0, text, "%s", err.msg);
        return;
    }
    const setting *const set[] = {&apart, &together, &plain, &pieces};
    const bool moves = selects(plan.tokens) &&
                       plan.tokens->read_rule(&plan.tokens_values).threshold > 0,
               numbers = is_uneven(plan.tokens) || moves;
    /* Fraction of kept tokens that GPU and CPU must have in common. It is lower if the method also
     * selects tokens to read. */
    const double share = selects(plan.tokens) && drops(plan.tokens) ? 0.92 : 0.95;
    for (size_t i = 0; i < (selects(plan.tokens) && !drops(plan.tokens) ? 4 : 3); i++) {
        double median = 0, most = 0, mean = 0, least = 0;
        size_t wrong = 0;
        /* true if GPU and CPU must keep equally many tokens in each KV head */
        const bool exact = !set[i]->chunk && plan.tokens != &kvd_tokens_kvmerger &&
                           !(selects(plan.tokens) && drops(plan.tokens));
        const double *const counts = exact ? want.entries : NULL;
        const int status = by_cuda(c, l, &plan, set[i], counts, &got, &wrong, &err);
        if (!status) {
            median = logits_off(l, got.logits, want.logits, &most);
            least = overlap(l, config, &got, &want, numbers, &mean);
        }
        (void)snprintf(name, sizeof name, "%s, %s", text, set[i]->name);
        (void)snprintf(
            detail, sizeof detail,
            "median %.2g (%.2g without a method), most %.2g; kept sets share %.3f, least %.3f; "
            "%zu wrong counts",
            median, bar, most, mean, least, wrong);
        test_result(!status && median < 3 * bar && mean > share && !wrong, name, "%s",
                    status ? err.msg : detail);
        if (i == 0)
            memcpy(again.logits, got.logits, l->outputs * l->vocab * sizeof(float));
        if (i == 2)
            test_result(
                !status && !memcmp(again.logits, got.logits, l->outputs * l->vocab * sizeof(float)),
                text, "the same bits with and without graphs");
    }
    kvd_plan_close(&plan);
    result_release(&want);
    result_release(&got);
    result_release(&again);
}

static void all_stay(const kvd_checkpoint *c, const load *l, const char *text, const kvd_dims *dims)
{
    const kvd_config *const config = kvd_checkpoint_config(c);
    kvd_err err = {""};
    kvd_plan plan, none = {.type = KVD_BF16, .dims = dims};
    result want = result_make(l, config), got = result_make(l, config);
    char name[160];
    size_t wrong = 0;
    int status = plan_of(text, config, &plan, &err);
    plan.dims = dims;
    status = status || by_cuda(c, l, &none, &together, NULL, &want, &wrong, &err) ||
             by_cuda(c, l, &plan, &together, NULL, &got, &wrong, &err);
    (void)snprintf(name, sizeof name, "%s%s", text, dims ? " with compressed heads" : "");
    test_result(!status && !memcmp(want.logits, got.logits, l->outputs * l->vocab * sizeof(float)),
                name, "%s", status ? err.msg : "nothing leaves: the same bits as without");
    kvd_plan_close(&plan);
    result_release(&want);
    result_release(&got);
}

/* Tests an eviction method combined with smaller heads. Each head must keep as many tokens as with
 * the eviction method alone.
 *
 * - text: the eviction method alone, such as "h2o"
 * - dims: projections that make heads smaller; NULL: uses the combined method `with`, such as
 *   "h2o+palu" */
static void with_dims(const kvd_checkpoint *c, const load *l, const char *text,
                      const kvd_dims *dims, const char *with)
{
    const kvd_config *const config = kvd_checkpoint_config(c);
    kvd_err err = {""};
    kvd_plan plan;
    result want = result_make(l, config), got = result_make(l, config),
           again = result_make(l, config);
    char name[160], detail[200];
    size_t wrong[2] = {0};
    double mean = 0;
    int status = plan_of(text, config, &plan, &err) || by_cpu(c, l, &plan, &want, &err);
    if (dims) {
        plan.dims = dims;
    } else {
        kvd_plan_close(&plan);
        status = status || plan_of(with, config, &plan, &err);
    }
    status = status || by_cuda(c, l, &plan, &apart, want.entries, &got, &wrong[0], &err) ||
             by_cuda(c, l, &plan, &plain, want.entries, &again, &wrong[1], &err);
    const double least = overlap(l, config, &got, &again, false, &mean);
    const bool same =
        !status && !memcmp(again.logits, got.logits, l->outputs * l->vocab * sizeof(float));
    (void)snprintf(name, sizeof name, "%s with compressed heads", dims ? text : with);
    (void)snprintf(detail, sizeof detail,
                   "%zu and %zu wrong counts, %s bits with and without graphs", wrong[0], wrong[1],
                   same ? "the same" : "other");
    test_result(same && !wrong[0] && !wrong[1] && least > 0.999, name, "%s",
                status ? err.msg : detail);
    kvd_plan_close(&plan);
    result_release(&want);
    result_release(&got);
    result_release(&again);
}

/* Returns how many requests keep more tokens than their budget, or less than 4/5 of it. *dropped:
 * number of tokens that are not kept. */
static size_t beyond_budget(const load *l, const kvd_config *c, const kvd_plan *plan,
                            const result *got, size_t *dropped)
{
    size_t wrong = 0;
    *dropped = 0;
    for (size_t r = 0; r < l->n; r++) {
        const size_t n = requests[r].input, heads = heads_of(c);
        size_t held = 0, most = 0;
        if (requests[r].output < 2)
            continue;
        for (size_t h = 0; h < heads; h++)
            held += got->kept[r * heads + h];
        for (int layer = 0; layer < c->n_layers; layer++) {
            const kvd_evict_request q = {n, n + requests[r].output, layer, c->n_layers};
            const kvd_evict_budget b = plan->tokens->eviction->budget(&plan->tokens_values, &q);
            const size_t newest = n < (size_t)b.keep_new ? n : (size_t)b.keep_new,
                         old = n - newest < (size_t)b.keep_old ? n - newest : (size_t)b.keep_old;
            most += (newest + old) * (size_t)c->n_kv_heads;
        }
        *dropped += held < n * heads;
        wrong += n >= 60 && (held > most || 5 * held < 4 * most);
    }
    return wrong;
}

static void alone(const kvd_checkpoint *c, const load *l, const char *text)
{
    const kvd_config *const config = kvd_checkpoint_config(c);
    kvd_err err = {""};
    kvd_plan plan;
    result got = result_make(l, config), again = result_make(l, config);
    char name[160], detail[200];
    if (plan_of(text, config, &plan, &err)) {
        test_result(0, text, "%s", err.msg);
        return;
    }
    const setting *const set[] = {&apart, &together, &plain};
    for (size_t i = 0; i < 3; i++) {
        size_t wrong = 0, beyond = 0, dropped = 0;
        const int status = by_cuda(c, l, &plan, set[i], NULL, i ? &got : &again, &wrong, &err);
        if (!status)
            beyond = beyond_budget(l, config, &plan, i ? &got : &again, &dropped);
        (void)snprintf(name, sizeof name, "%s, %s", text, set[i]->name);
        (void)snprintf(detail, sizeof detail,
                       "%zu wrong counts, %zu requests beyond the budget, %zu with entries dropped",
                       wrong, beyond, dropped);
        test_result(!status && !wrong && !beyond && dropped, name, "%s", status ? err.msg : detail);
        if (i == 2)
            test_result(
                !status && !memcmp(again.logits, got.logits, l->outputs * l->vocab * sizeof(float)),
                text, "the same bits with and without graphs");
    }
    kvd_plan_close(&plan);
    result_release(&got);
    result_release(&again);
}

static void all_near(const kvd_checkpoint *c, const load *l, const char *text, double bar)
{
    const kvd_config *const config = kvd_checkpoint_config(c);
    kvd_err err = {""};
    kvd_plan plan, none = {.type = KVD_BF16};
    result want = result_make(l, config), got = result_make(l, config);
    char detail[160];
    size_t wrong = 0, dropped = 1;
    double median = 0, most = 0;
    int status = plan_of(text, config, &plan, &err);
    status = status || by_cuda(c, l, &none, &together, NULL, &want, &wrong, &err) ||
             by_cuda(c, l, &plan, &together, NULL, &got, &wrong, &err);
    if (!status) {
        median = logits_off(l, got.logits, want.logits, &most);
        dropped = 0;
        if (plan.tokens->eviction)
            (void)beyond_budget(l, config, &plan, &got, &dropped);
    }
    (void)snprintf(detail, sizeof detail,
                   "nothing leaves: median %.2g from none (%.2g between engines), most %.2g, %zu "
                   "wrong counts",
                   median, bar, most, wrong);
    test_result(!status && !wrong && !dropped && median < 3 * bar, text, "%s",
                status ? err.msg : detail);
    kvd_plan_close(&plan);
    result_release(&want);
    result_release(&got);
}

static void refused(const kvd_checkpoint *c, const char *text, const kvd_dims *d, size_t chunk,
                    const char *why)
{
    const kvd_engine_spec spec =
        spec_of(&(setting){.max_batch = 1, .chunk = chunk}, 100, chunk ? 0 : 100);
    kvd_err err = {""};
    kvd_plan plan;
    if (plan_of(text, kvd_checkpoint_config(c), &plan, &err)) {
        test_result(0, "refused", "%s", err.msg);
        return;
    }
    const kvd_dims *const own = plan.dims;
    plan.dims = d ? d : own;
    engine_refused(c, &plan, &spec, why);
    plan.dims = own;
    kvd_plan_close(&plan);
}

/* Tests that a decode step runs on a cache that was never filled. Unless `uneven` is true, also
 * tests that the engine refuses a prompt in pieces. uneven: true if KV heads keep different numbers
 * of tokens. */
static void test_context(const kvd_checkpoint *c, const char *text, bool uneven)
{
    const kvd_engine_spec spec = spec_of(&(setting){.max_batch = 1}, 100, 100);
    const kvd_slice piece = {.before = 10, .n = 5}, step = {.before = 90, .n = 1, .emits = 1};
    const kvd_iteration first = {.n_slices = 1, .n_steps = 1, .slice = &step, .n_tokens = 1},
                        it = {.n_slices = 1, .slice = &piece, .n_tokens = 5};
    const uint32_t id[5] = {1, 2, 3, 4, 5};
    uint32_t token;
    kvd_err err = {""};
    kvd_plan plan;
    if (plan_of(text, kvd_checkpoint_config(c), &plan, &err)) {
        test_result(0, text, "%s", err.msg);
        return;
    }
    kvd_engine *const e = kvd_engine_open_cuda(c, &plan, &spec, &err);
    const int status = !e || e->step(e, &first, id, &token, NULL, &err);
    test_result(!status, "a context that was never computed", "%s", status ? err.msg : text);
    if (!uneven)
        test_result(e && e->step(e, &it, id, &token, NULL, &err) && strstr(err.msg, "in one piece"),
                    "refused", "%s", err.msg);
    engine_free(e);
    kvd_plan_close(&plan);
}

static void refused_window(const char *text, const char *shape, const char *why)
{
    const kvd_shape made = {"mistral", "mistral", "made up", shape};
    const kvd_engine_spec spec = spec_of(&(setting){.max_batch = 1}, LONGEST, LONGEST);
    kvd_err err = {""};
    kvd_plan plan;
    kvd_checkpoint *const c = shape_or_end(&made, 5);
    if (plan_of(text, kvd_checkpoint_config(c), &plan, &err)) {
        test_result(0, text, "%s", err.msg);
    } else {
        engine_refused(c, &plan, &spec, why);
        kvd_plan_close(&plan);
    }
    kvd_checkpoint_close(c);
}

#define SIZES                                                                                      \
    "\"hidden_size\":256,\"intermediate_size\":192,\"num_attention_heads\":4,"                     \
    "\"num_key_value_heads\":2,\"max_position_embeddings\":1024,\"rms_norm_eps\":1e-06,"           \
    "\"vocab_size\":300,"
#define GEMMA                                                                                      \
    "{" SIZES "\"architectures\":[\"Gemma3ForCausalLM\"],\"model_type\":\"gemma3_text\","          \
    "\"hidden_activation\":\"gelu_pytorch_tanh\",\"num_hidden_layers\":4,"                         \
    "\"rope_theta\":10000.0,\"attention_bias\":false,\"query_pre_attn_scalar\":10,"                \
    "\"rope_local_base_freq\":5000.0,\"layer_types\":[\"sliding_attention\","                      \
    "\"full_attention\",\"sliding_attention\",\"full_attention\"],\"sliding_window\":40,"

/* Tests a Gemma model in which layers 1 and 3 have full attention and all others have a sliding
 * window. */
static void test_gemma(const kvd_shape *gemma, const char *const *text, size_t n, int few)
{
    static const kvd_plan none = {.type = KVD_BF16};
    kvd_err err = {""};
    kvd_checkpoint *const c = shape_or_end(gemma, 5);
    load l = load_make(c, requests, few ? 3 : N_REQUESTS, 41);
    result want = result_make(&l, kvd_checkpoint_config(c)),
           got = result_make(&l, kvd_checkpoint_config(c));
    size_t wrong;
    double most = 0;
    char path[128];
    (void)snprintf(path, sizeof path, "%s/windows.h5", temp_folder());
    if (open_made_dump(kvd_checkpoint_config(c), path, &calibration, &err) ||
        by_cpu(c, &l, &none, &want, &err) ||
        by_cuda(c, &l, &none, &apart, NULL, &got, &wrong, &err))
        test_result(0, gemma->name, "%s", err.msg);
    printf("# %s\n", gemma->name);
    const double median = logits_off(&l, got.logits, want.logits, &most);
    for (size_t i = 0; i < n; i++)
        against_cpu(c, &l, text[i], median);
    kvd_activations_close(&calibration);
    result_release(&want);
    result_release(&got);
    load_release(&l);
    kvd_checkpoint_close(c);
}

static void test_windows(int quick)
{
    static const char *const text[] = {
        "h2o,heavy=40,recent=24",      "h2o+palu,p=0,heavy=40,recent=24",
        "snapkv,window=16,budget=48",  "snapkv+palu,p=0,window=16,budget=48",
        "quest,budget=64,page=16",     "pyramidkv,window=16,budget=48",
        "streaming,sink=4,recent=61",  "tova,budget=64",
        "keyformer,keys=40,recent=24", "knorm,budget=48",
        "keydiff,budget=48",           "adakv,window=16,budget=48",
        "locret,budget=48,local=16",   "locret,budget=0.2,local=8",
        "taskkv,window=16,budget=48",  "quest,budget=0.25,page=64",
        "expectedattention,budget=48"};
    static const kvd_shape gemma = {"gemma3, window 40", "gemma3_text", "made up",
                                    GEMMA "\"head_dim\":64}"},
                           wide = {"gemma3, window 40, heads of 256", "gemma3_text", "made up",
                                   GEMMA "\"head_dim\":256}"};
    const size_t n = sizeof text / sizeof *text;
    test_gemma(&gemma, text, quick ? 4 : n, quick);
    test_gemma(&wide, text, quick ? 2 : n, true);
    refused_window("h2o,heavy=8,recent=8",
                   "{" SIZES
                   "\"architectures\":[\"MistralForCausalLM\"],\"model_type\":\"mistral\","
                   "\"hidden_act\":\"silu\",\"num_hidden_layers\":2,\"rope_theta\":10000.0,"
                   "\"head_dim\":64,\"tie_word_embeddings\":false,\"sliding_window\":100}",
                   "all 2 layers have a window of 100 tokens");
    refused_window("gear", gemma.json, "know no window");
}

/* usage: gpu_engine_evict [quick|windows|METHOD] [I/N]
 * quick    few requests and methods, for compute-sanitizer
 * windows  only models with sliding windows; `quick windows`: fewer methods
 * METHOD   only methods that contain METHOD in their name or parameters
 * I/N      part I of N of the tests, counted from 1 */
int main(int argc, char **argv)
{
    char texts[] =
        "h2o h2o,heavy=40,recent=24 h2o,heavy=1,recent=62 h2o,heavy=30,recent=35 "
        "h2o,heavy=100,recent=28 h2o,heavy=0,recent=1 keyformer keyformer,keys=40,recent=24 "
        "kvmerger kvmerger,threshold=0.9,heavy=20,recent=16 ems,window=16,budget=48 "
        "ems,budget=0.3,merge=1,threshold=0.8 elasticcache elasticcache,budget=48,distance=8 "
        "d2o d2o,heavy=40,recent=24 scissorhands scissorhands,budget=64,recent=16,drop=8 "
        "kvcrush,window=16,budget=48 kvcrush,budget=0.3,crush=0.5,anchor=1 "
        "snapkv,window=16,budget=48 snapkv,window=32,budget=0.2 streaming "
        "streaming,sink=4,recent=61 streaming,sink=0,recent=1 tova tova,budget=64 "
        "tova,budget=1 knorm,budget=48 knorm keydiff,budget=48 keydiff "
        "locret,budget=48,local=16 locret,budget=0.3,local=1 "
        "expectedattention,budget=48 expectedattention,budget=0.3,future=64,covariance=0 "
        "pyramidkv,window=16,budget=48 pyramidkv,window=32,budget=0.2 "
        "adakv,window=16,budget=48 adakv,window=32,budget=0.3,alpha=0 "
        "taskkv,window=16,budget=48 quest,budget=64,page=16 quest,budget=0.25,page=64 "
        "quest,budget=0.3,page=1 alisa,budget=64 alisa,budget=0.4,history=3,local=0.3 "
        "a2ats,size=40,rows=250,budget=0.1,local=16,relative=64 "
        "mpcache,threshold=0,budget=0.3,large=16,small=4 "
        "mpcache,threshold=0.003,budget=0.3,large=16,small=4 "
        "h2o+palu,p=0,heavy=40,recent=24 h2o+palu,p=0,heavy=1,recent=62 "
        "keyformer+palu,p=0 keyformer+palu,p=0,keys=40,recent=24 tova+palu,p=0,budget=64 "
        "scissorhands+palu,p=0,budget=64,recent=16,drop=8 streaming+palu,p=0,sink=4,recent=61 "
        "snapkv+palu,p=0,window=16,budget=48";
    static const kvd_plan none = {.type = KVD_BF16};
    argc -= argc > 1 && read_part(argv[argc - 1]);
    const int quick = argc > 1 && !strcmp(argv[1], "quick");
    const int windows = argc > 1 && !strcmp(argv[argc - 1], "windows");
    kvd_err err = {""};
    if (!gpu_devices("evicting engine", 1))
        return 0;
    if (windows || (argc < 2 && in_this_part(0)))
        test_windows(quick);
    if (windows)
        return failures ? 1 : 0;
    char path[128];
    kvd_checkpoint *const c = checkpoint_or_end("data/models/kvdim-6m");
    const kvd_config *const config = kvd_checkpoint_config(c);
    (void)snprintf(path, sizeof path, "%s/a.h5", temp_folder());
    if (open_made_dump(config, path, &calibration, &err)) {
        printf("not ok %s\n", err.msg);
        return 1;
    }
    load l = load_make(c, requests, quick ? 3 : N_REQUESTS, 41);
    result want = result_make(&l, config), got = result_make(&l, config);
    size_t wrong;
    double most = 0;
    if (by_cpu(c, &l, &none, &want, &err) ||
        by_cuda(c, &l, &none, &apart, NULL, &got, &wrong, &err))
        test_result(0, "none", "%s", err.msg);
    const double median = logits_off(&l, got.logits, want.logits, &most);
    size_t next = 0;
    for (char *rest = texts, *text; (text = strsep(&rest, " "));)
        if ((quick ? !strcmp(text, "h2o") || !strcmp(text, "keyformer+palu,p=0") ||
                         strstr(text, "adakv,window=16") || strstr(text, "page=16")
                   : argc < 2 || strstr(text, argv[1])) &&
            in_this_part(next++))
            against_cpu(c, &l, text, median);
    kvd_spectrum s = {0};
    kvd_dims d = {0};
    if (fixture_spectrum(&s, config, 7, &err) ||
        fixture_dims(&d, &s, config, &kvd_dims_zack, fixture_uneven, &err)) {
        test_result(0, "compressed heads", "%s", err.msg);
        return 1;
    }
    all_stay(c, &l, "h2o,heavy=400,recent=400", NULL);
    all_stay(c, &l, "keyformer,keys=400,recent=400", quick ? NULL : &d);
    if (!quick && in_this_part(1)) {
        with_dims(c, &l, "keyformer,keys=40,recent=24", &d, NULL);
        with_dims(c, &l, "tova,budget=64", &d, NULL);
        with_dims(c, &l, "ems,window=16,budget=48", &d, NULL);
        with_dims(c, &l, "elasticcache,budget=48", &d, NULL);
        with_dims(c, &l, "d2o,heavy=40,recent=24", &d, NULL);
        with_dims(c, &l, "scissorhands,budget=64,recent=16", &d, NULL);
        with_dims(c, &l, "kvcrush,window=16,budget=48", &d, NULL);
        with_dims(c, &l, "streaming,sink=4,recent=60", &d, NULL);
        with_dims(c, &l, "keyformer,keys=40,recent=24", NULL,
                  "keyformer+palu,p=0.4,keys=40,recent=24");
        with_dims(c, &l, "h2o,heavy=100,recent=28", NULL, "h2o+palu,p=0.7,heavy=100,recent=28");
        with_dims(c, &l, "snapkv,window=16,budget=48", NULL,
                  "snapkv+palu,p=0.4,window=16,budget=48");
    }
    if (in_this_part(2)) {
        alone(c, &l, "prefixkv,budget=0.4");
        alone(c, &l, "cake,window=16,budget=48");
        alone(c, &l, "kvzip,budget=0.4");
    }
    if (!quick && in_this_part(2)) {
        alone(c, &l, "windowkv,window=16,review=8,budget=48,layers=2,beta=4");
        alone(c, &l, "windowkv,window=16,review=8,budget=0.3,layers=3,beta=6,largest=1");
        alone(c, &l, "kvzip,budget=48,sink=0");
    }
    if (!quick && in_this_part(3)) {
        all_near(c, &l, "prefixkv,budget=500", median);
        all_near(c, &l, "cake,window=16,budget=500", median);
        all_near(c, &l, "windowkv,budget=500", median);
        all_near(c, &l, "kvzip,budget=500", median);
        all_near(c, &l, "quest,budget=500,page=8", median);
        all_near(c, &l, "quest,budget=500,page=64", median);
        all_near(c, &l, "alisa,budget=500", median);
        all_near(c, &l, "mpcache,threshold=0,budget=500", median);
    }
    refused(c, "h2o,heavy=8,recent=8", NULL, 48, "'h2o' compresses a prompt in one piece");
    refused(c, "snapkv+kivi,bits=4,group=32", NULL, 0, "not with 'kivi'");
    refused(c, "adakv,budget=20,window=16", &d, 0, "'adakv' alone");
    refused(c, "knorm,budget=48", &d, 0, "'knorm' after a method of the dims axis");
    refused(c, "knorm+palu,budget=48", NULL, 0, "'knorm' after a method of the dims axis");
    refused(c, "h2o+palu,heads=2", NULL, 0, "give heads=1");
    refused(c, "adakv+palu,budget=20,window=16", NULL, 0, "not with 'adakv'");
    refused(c, "h2o+palu+kvquant", NULL, 0, "not with 'kvquant'");
    test_context(c, "adakv,budget=20,window=16", true);
    test_context(c, "h2o,heavy=8,recent=8", false);
    test_context(c, "keyformer+palu,keys=8,recent=8", false);
    kvd_dims_release(&d);
    kvd_spectrum_release(&s);
    result_release(&want);
    result_release(&got);
    load_release(&l);
    kvd_activations_close(&calibration);
    kvd_checkpoint_close(c);
    return failures ? 1 : 0;
}

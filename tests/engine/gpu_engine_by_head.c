/* Tests compression methods that store data per KV head. Two GPUs must compute nearly the same
 * logits as one GPU. */
#include <math.h>

#include "dims_fixture.h"
#include "engine_schedule.h"
#include "make_dump.h"
#include "methods/bits/levels.h"
#include "methods/points.h"

static kvd_activations dump;
static kvd_spectrum spectrum;

typedef struct {
    kvd_plan plan;
    kvd_method method;
    kvd_point *point;
    size_t n_points;
} opened;

static void close_plan(opened *o)
{
    kvd_plan_close(&o->plan);
    kvd_points_free(o->point, o->n_points);
}

/* Prepares compression method `method` with random matrices, or with calibration data if it needs
 * them. The caller closes *o, also after a failure. */
static int open_plan(const kvd_checkpoint *from, const char *method, size_t max_len, opened *o,
                     kvd_err *err)
{
    const kvd_config *const c = kvd_checkpoint_config(from);
    const bool reads = strstr(method, "a2ats") || strstr(method, "palu+");
    const kvd_method_setup setup = {.config = c,
                                    .checkpoint = from,
                                    .calibration = reads ? &dump : NULL,
                                    .drawn = !reads,
                                    .seed = 3};
    kvd_plan *const plan = &o->plan;
    *o = (opened){.point = NULL};
    if (kvd_method_parse(method, &o->method, err))
        return -1;
    o->method.spectrum = o->method.dims ? &spectrum : NULL;
    o->method.spectrum_path = "fixture";
    if (kvd_points_make(&o->method, &o->point, &o->n_points, err))
        return -1;
    *plan = kvd_point_plan(o->point);
    plan->type = KVD_BF16;
    plan->prompt = kvd_plan_beyond_widths(plan) ? max_len : 0;
    if (kvd_plan_open(plan, &setup, err))
        return -1;
    if (plan->bits != &kvd_bits_kvquant)
        return 0;
    kvd_kvquant_tables t;
    kvd_kvquant_tables_of(plan->bits_self, &t);
    float *const range = (float *)(uintptr_t)t.range;
    const size_t heads = (size_t)c->n_layers * (size_t)c->n_kv_heads, n = 2 * t.range_width;
    for (size_t h = 0; h < heads; h++)
        for (size_t i = 0; i < n; i++)
            range[h * n + i] *= 1 + 0.5F * (float)(h % (size_t)c->n_kv_heads);
    return 0;
}

static int run(const load *l, const char *method, int gpus, served *o, kvd_err *err)
{
    const serving_order by = {.slots = 4, .singly = true};
    const setting set = {.max_batch = 4, .graphs = true, .phases = true};
    kvd_engine_spec spec = spec_of(&set, l->max_len, 4 * l->max_len);
    opened of;
    spec.n_gpus = gpus;
    kvd_engine *const e = open_plan(l->c, method, l->max_len, &of, err)
                              ? NULL
                              : kvd_engine_open_cuda(l->c, &of.plan, &spec, err);
    const int status = !e || serve_recorded(e, l, &by, o, err) ? -1 : 0;
    engine_free(e);
    close_plan(&of);
    return status;
}

/* Compares the logits that one GPU and two GPUs compute with a compression method. `none`: results
 * of one GPU without compression; `rounding`: difference between one and two GPUs without
 * compression. */
static void test(const load *l, const char *method, const served *none, double rounding)
{
    kvd_err err = {""};
    served one = {NULL}, two = {NULL};
    if (run(l, method, 1, &one, &err) || run(l, method, 2, &two, &err))
        test_result(0, method, "%s", err.msg);
    else {
        double worst;
        const double between = logits_off(l, two.logits, one.logits, &worst),
                     own = logits_off(l, one.logits, none->logits, &worst),
                     held = held_off(&two, &one);
        const double most = strstr(method, "palu+") ? 0.03 : 0.01;
        test_result(own >= 9 * rounding && between <= fmax(own / 4, 6 * rounding) && held <= most,
                    method,
                    "off by %.3g (none %.3g), the method itself by %.3g, held bytes by %.3g",
                    between, rounding, own, held);
    }
    free(one.logits);
    free(two.logits);
}

static void refused(const load *l, const char *method, const char *why)
{
    kvd_err err = {""};
    served o = {NULL};
    const int status = run(l, method, 2, &o, &err);
    test_result(status && strstr(err.msg, why), method, "%s", status ? err.msg : "was not refused");
    free(o.logits);
}

/* usage: gpu_engine_by_head [quick|TEXT]. `quick`: fewer methods. TEXT: only methods whose names
 * contain TEXT. */
int main(int argc, char **argv)
{
    static const request requests[] = {{300, 20}, {129, 30}, {64, 12}, {200, 40}, {63, 10}};
    static const char *const method[] = {"kivi,bits=2,group=32,residual=32",
                                         "kvquant,bits=3,outliers=0",
                                         "palu,heads=2,p=0.5",
                                         "palu,heads=1,p=0.7",
                                         "palu+allot,heads=2,p=0.3,bits=2",
                                         "palu+kvquant,heads=2,p=0.3,bits=2,outliers=0",
                                         "strawman,p=0.7",
                                         "think,p=0.6",
                                         "minicache,gamma=0,start=0",
                                         "h2o,heavy=0.1,recent=0.1",
                                         "keyformer,keys=0.1,recent=0.1",
                                         "scissorhands,drop=4",
                                         "d2o",
                                         "ems,budget=0.1,threshold=0.05",
                                         "snapkv,budget=0.3",
                                         "knorm,budget=0.3",
                                         "keydiff,budget=0.3",
                                         "locret,budget=0.3,local=16",
                                         "expectedattention,budget=0.3",
                                         "pyramidkv,budget=0.1",
                                         "adakv,budget=0.1",
                                         "taskkv,budget=0.1",
                                         "prefixkv,budget=0.2",
                                         "cake,budget=0.1",
                                         "kvzip,budget=0.2",
                                         "windowkv,budget=0.2,layers=2",
                                         "kvmerger,threshold=0.05,heavy=0.05,recent=0.05",
                                         "tova,budget=0.1",
                                         "elasticcache,budget=0.2",
                                         "kvcrush,budget=0.1",
                                         "zdc,p=0.1,p_u=0.8,g=0.3",
                                         "zdc,p=0.1,p_u=0.8,g=0.3,mean=1,layers=2",
                                         "zdc,online=1,p=0.1,p_u=0.8",
                                         "received+zack,p=0.1,p_u=0.8,g=0.3",
                                         "h2o+zack,p=0.3",
                                         "zack+kivi,p=0.3,bits=2,residual=32",
                                         "quest,budget=0.2,page=8",
                                         "a2ats,size=64,rows=250,budget=0.1,sink=4,local=16,"
                                         "relative=64",
                                         "alisa,budget=0.2",
                                         "mikv,lk=2,lv=2",
                                         "leankv,window=16,th=0.4,tl=0.2",
                                         "comet,bits=2,group=32",
                                         "allot,bits=2",
                                         "gear,bits=2,rank=2,outliers=0",
                                         "hetero,k=2,v=2",
                                         "zipcache,high=3,low=1,block=20",
                                         "vidkv,residual=32",
                                         "turboquant,bits=2,qjl=0",
                                         "cachegen,bin=4,group=8,groups=8,lanes=1"};
    static const char *const joined[][2] = {
        {"palu,heads=4,p=0.5", "share a latent"},
        {"mpcache",
         "'mpcache' on one GPU, 2 were asked for: all KV heads of a layer keep the same"},
        {"shadowkv", "have one basis"},
        {"xkv", "share a basis"},
        {"minicache,start=0", "the range of angles"},
        {"rotatekv", "a code holds all KV heads"},
        {"xquant", "a layer's input"},
        {"waterfill,block=64", "one transform"}};
    const bool quick = argc > 1 && strcmp(argv[1], "quick") == 0;
    const char *const only = argc > 1 && !quick ? argv[1] : NULL;
    if (!gpu_devices("heads on two GPUs", 2))
        return 0;
    char path[128], file[160];
    kvd_err err = {""};
    made_spec s = MADE_SPEC_DEFAULTS;
    s.layers = 2;
    s.heads = 8;
    s.kv_heads = 4;
    s.d_head = 128;
    s.d_model = 256;
    s.positions = 1024;
    made_or_end("by-head", &s, path);
    kvd_checkpoint *const c = checkpoint_or_end(path);
    (void)snprintf(file, sizeof file, "%s/a.h5", path);
    if (open_made_dump(kvd_checkpoint_config(c), file, &dump, &err) ||
        fixture_spectrum(&spectrum, kvd_checkpoint_config(c), 5, &err)) {
        test_result(0, path, "%s", err.msg);
        return 1;
    }
    load l = load_make(c, requests, quick ? 2 : 5, 17);
    served none = {NULL}, again = {NULL};
    if (run(&l, "none", 1, &none, &err) || run(&l, "none", 2, &again, &err))
        test_result(0, "none", "%s", err.msg);
    else {
        double worst;
        const double rounding = logits_off(&l, again.logits, none.logits, &worst);
        test_result(rounding < 0.05, "none", "one and two GPUs");
        for (size_t i = 0; i < (quick ? 3 : sizeof method / sizeof *method); i++)
            if (!only || strstr(method[i], only))
                test(&l, method[i], &none, rounding);
        for (size_t i = 0; i < sizeof joined / sizeof *joined; i++)
            refused(&l, joined[i][0], joined[i][1]);
    }
    free(none.logits);
    free(again.logits);
    load_release(&l);
    kvd_activations_close(&dump);
    kvd_spectrum_release(&spectrum);
    kvd_checkpoint_close(c);
    return failures ? 1 : 0;
}

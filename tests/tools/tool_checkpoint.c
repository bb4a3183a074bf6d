/* Writes a small Llama checkpoint: a llama2.c file (path *.bin) or a folder. */
#include <argp.h>

#include "make_checkpoint.h"

typedef struct {
    made_spec spec;
    const char *path;
} settings;

static const struct argp_option options[] = {
    {"layers", 'l', "N", 0, "layers (2)", 0},
    {"heads", 'h', "N", 0, "query heads (4)", 0},
    {"kv-heads", 'k', "N", 0, "KV heads (2)", 0},
    {"d-head", 'd', "N", 0, "head size (16)", 0},
    {"d-model", 'm', "N", 0, "model size (64)", 0},
    {"ffn", 'f', "N", 0, "inner size of the MLP (96)", 0},
    {"vocab", 'v', "N", 0, "vocabulary (300)", 0},
    {"positions", 'p', "N", 0, "longest sequence (256)", 0},
    {"shards", 'n', "N", 0, "safetensors files (1)", 0},
    {"untied", 'u', 0, 0, "a head of its own", 0},
    {"dtype", 't', "f32|f16|bf16", 0, "stored type (f32)", 0},
    {"seed", 's', "N", 0, "of the weights (1)", 0},
    {"theta", 'b', "X", 0, "RoPE base (10000)", 0},
    {"rope", 'r', "default|linear|llama3", 0, "RoPE type (default)", 0},
    {0},
};

static int parse_int(const char *text, const char *name, struct argp_state *state)
{
    char *end;
    errno = 0;
    const long n = strtol(text, &end, 10);
    if (errno || end == text || *end || n < 0 || n > 1 << 20)
        argp_error(state, "%s: '%s' is no size", name, text);
    return (int)n;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    settings *s = state->input;
    made_spec *m = &s->spec;
    char *end;
    int *const sizes[] = {&m->layers, &m->heads, &m->kv_heads,  &m->d_head, &m->d_model,
                          &m->ffn,    &m->vocab, &m->positions, &m->shards};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        if (key == options[i].key) {
            *sizes[i] = parse_int(arg, options[i].name, state);
            return 0;
        }
    switch (key) {
    case 'u':
        m->tied = false;
        return 0;
    case 't':
        for (int t = KVD_F32; t <= KVD_BF16; t++)
            if (strcmp(arg, kvd_dtype_name((kvd_dtype)t)) == 0) {
                m->dtype = (kvd_dtype)t;
                return 0;
            }
        argp_error(state, "no dtype '%s'", arg);
        return EINVAL;
    case 's':
        m->seed = (uint64_t)parse_int(arg, "seed", state);
        return 0;
    case 'b':
        m->theta = strtod(arg, &end);
        if (end == arg || *end || !(m->theta > 0))
            argp_error(state, "theta: '%s' is not positive", arg);
        return 0;
    case 'r':
        m->rope = arg;
        return 0;
    case ARGP_KEY_ARG:
        if (s->path)
            argp_error(state, "one path");
        s->path = arg;
        return 0;
    case ARGP_KEY_END:
        if (!s->path)
            argp_error(state, "no path");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

int main(int argc, char **argv)
{
    const struct argp argp = {options, parse, "PATH", "Writes a small random Llama checkpoint.",
                              0,       0,     0};
    settings s = {.spec = MADE_SPEC_DEFAULTS};
    kvd_err err = {""};
    argp_err_exit_status = 2;
    if (argp_parse(&argp, argc, argv, 0, NULL, &s))
        return 2;
    const size_t len = strlen(s.path);
    const bool llama2c = len > 4 && strcmp(s.path + len - 4, ".bin") == 0;
    if (llama2c ? make_llama2c(s.path, &s.spec, &err) : make_checkpoint(s.path, &s.spec, &err)) {
        (void)fprintf(stderr, "tool_checkpoint: %s\n", err.msg);
        return 1;
    }
    return 0;
}

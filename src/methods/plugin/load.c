/* Loads plugin libraries, checks the method tables that they export, and registers the methods. */
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/options.h"
#include "common/utf8.h"
#include "methods/method.h"
#include "methods/plugin/plugin_method.h"

enum { LIBRARIES = 16, METHODS = 32, NAME = 24, KEY = 16, TEXT = 200, VERSION = 40 };

typedef struct {
    const char *path;
    void *handle;
    char version[VERSION + 1];
    size_t n;
    kvd_plugin_method *method[METHODS];
} library;

/* Libraries loaded so far. Written only before other threads start. */
static library loaded[LIBRARIES];
static int n_loaded;

/* Returns true if `text` is a valid name: a letter a-z, then letters a-z, digits and '_', at most
 * `most` characters in all. */
static bool is_name(const char *text, size_t most)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789_";
    if (!text || *text < 'a' || *text > 'z')
        return false;
    const size_t n = strnlen(text, most + 1);
    return n <= most && strspn(text, letters) == n;
}

/* Returns true if `text` is one non-empty line of valid UTF-8, of at most `most` bytes. */
static bool is_line(const char *text, size_t most)
{
    const size_t n = text ? strnlen(text, most + 1) : 0;
    if (n == 0 || n > most || kvd_utf8_first_bad(text, n) < n)
        return false;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f)
            return false;
    return true;
}

static int check_key(const kvdim_method *m, uint32_t i, kvd_err *err)
{
    const kvdim_key *const k = &m->key[i];
    if (!is_name(k->name, KEY))
        return kvd_fail(err, "the name of key %u is not 1 .. %d letters a-z, digits and '_'", i,
                        KEY);
    if (!strcmp(k->name, "keep_layers"))
        return kvd_fail(err, "key 'keep_layers' belongs to every method: give it another name");
    for (uint32_t j = 0; j < i; j++)
        if (!strcmp(m->key[j].name, k->name))
            return kvd_fail(err, "key '%s' is declared twice", k->name);
    if (!isfinite(k->low) || !isfinite(k->high) || k->low > k->high)
        return kvd_fail(err, "key '%s' has the range %g .. %g", k->name, k->low, k->high);
    if (!isnan(k->value) &&
        (k->value < k->low || k->value > k->high ||
         (k->whole && (k->value < floor(k->value) || k->value > floor(k->value)))))
        return kvd_fail(err, "key '%s' has the default %g, which is not a%s number in %g .. %g",
                        k->name, k->value, k->whole ? " whole" : "", k->low, k->high);
    return is_line(k->help, TEXT)
               ? 0
               : kvd_fail(err, "key '%s' has no help: one line of at most %d bytes", k->name, TEXT);
}

static int check_sweep(const kvdim_method *m, kvd_err *err)
{
    if (!m->sweep_key)
        return 0;
    for (uint32_t i = 0; i < m->n_keys; i++) {
        const kvdim_key *const k = &m->key[i];
        if (strncmp(m->sweep_key, k->name, KEY + 1))
            continue;
        const double low = fmin(m->sweep_most, m->sweep_least),
                     high = fmax(m->sweep_most, m->sweep_least);
        return low >= k->low && high <= k->high && low < high && (!m->sweep_ratio || low > 0)
                   ? 0
                   : kvd_fail(err,
                              "sweep_most %g and sweep_least %g are not two different numbers in "
                              "the range %g .. %g of key '%s'%s",
                              m->sweep_most, m->sweep_least, k->low, k->high, k->name,
                              m->sweep_ratio ? ", above 0 with sweep_ratio" : "");
    }
    return kvd_fail(err, "sweep_key '%.*s' is none of its keys", KEY, m->sweep_key);
}

static int check_method(const kvdim_method *m, kvd_err *err)
{
    size_t text = 0;
    if (m->n_keys > KVD_PLUGIN_KEYS || (m->n_keys && !m->key))
        return kvd_fail(err, "n_keys is %u: at most %d keys are allowed, in the array 'key'",
                        m->n_keys, (int)KVD_PLUGIN_KEYS);
    if (!is_line(m->summary, TEXT))
        return kvd_fail(err, "it has no summary: one line of at most %d bytes", TEXT);
    for (uint32_t i = 0; i < m->n_keys; i++) {
        if (check_key(m, i, err))
            return -1;
        text += strlen(m->name) + strlen(m->key[i].name) + 15;
    }
    if (text > sizeof((kvd_method *)0)->settings)
        return kvd_fail(err, "its keys are too long together: shorten their names");
    if (m->needs &
        ~(uint32_t)(KVDIM_NEEDS_PROBABILITIES | KVDIM_NEEDS_CALIBRATION | KVDIM_NEEDS_SEED))
        return kvd_fail(err, "needs has the unknown bits %#x", m->needs);
    return check_sweep(m, err);
}

static int check_name(const char *name, kvd_err *err)
{
    kvd_method_entry e;
    for (int i = 0; kvd_method_entry_at(i, &e); i++)
        if (!strcmp(e.info->name, name)) {
            int of = 0;
            while (kvd_plugin_path_at(of) && !kvd_plugin_has(of, e.info))
                of++;
            return kvd_plugin_path_at(of)
                       ? kvd_fail(err, "plugin '%s' already has a method of this name",
                                  kvd_plugin_path_at(of))
                       : kvd_fail(err, "kvdim has a method of this name: give yours another one");
        }
    return strcmp(name, "none") ? 0 : kvd_fail(err, "'none' is the uncompressed model");
}

static void fill_keys(kvd_plugin_method *m)
{
    const kvdim_method *const a = &m->api.method;
    for (uint32_t i = 0; i < a->n_keys; i++)
        m->parameter[i] = (kvd_parameter){.key = a->key[i].name,
                                          .value = a->key[i].value,
                                          .lo = a->key[i].low,
                                          .hi = a->key[i].high,
                                          .whole = a->key[i].whole != 0,
                                          .meaning = a->key[i].help};
    m->tradeoff = (kvd_tradeoff){.key = a->sweep_key,
                                 .most = a->sweep_most,
                                 .least = a->sweep_least,
                                 .geometric = a->sweep_ratio != 0};
}

static const struct {
    size_t size;
    int (*adapt)(kvd_plugin_method *m, kvd_err *err);
} axis[] = {
    [KVDIM_AXIS_TOKENS] = {sizeof(kvdim_tokens_method), kvd_plugin_tokens},
    [KVDIM_AXIS_BITS] = {sizeof(kvdim_bits_method), kvd_plugin_bits},
    [KVDIM_AXIS_DIMS] = {sizeof(kvdim_dims_method), kvd_plugin_dims},
    [KVDIM_AXIS_LAYERS] = {sizeof(kvdim_layers_method), kvd_plugin_layers},
};
enum { N_AXES = sizeof axis / sizeof *axis };

/* Makes a method *m from its description in a plugin. The caller frees *m, even after failure. */
static int make_method(const char *path, const kvdim_method *table, kvd_plugin_method **m,
                       kvd_err *err)
{
    if (!table)
        return kvd_fail(err, "its table is NULL");
    if (table->axis >= N_AXES || !axis[table->axis].adapt)
        return kvd_fail(err, "axis is %u, not one of KVDIM_AXIS_...", table->axis);
    if (table->struct_size != axis[table->axis].size)
        return kvd_fail(err, "struct_size is %u, this kvdim has %zu for its axis",
                        table->struct_size, axis[table->axis].size);
    if (!is_name(table->name, NAME))
        return kvd_fail(err, "its name is not 1 .. %d letters a-z, digits and '_'", NAME);
    if (!(*m = calloc(1, sizeof **m)))
        return kvd_no_memory(err, "a method", sizeof **m);
    memcpy(&(*m)->api, table, table->struct_size);
    (*m)->path = path;
    if (check_name(table->name, err) || check_method(table, err))
        return kvd_in(err, "'%s'", table->name);
    fill_keys(*m);
    if (axis[table->axis].adapt(*m, err))
        return kvd_in(err, "'%s'", table->name);
    (*m)->as.info.name = table->name;
    (*m)->as.info.summary = table->summary;
    (*m)->as.info.parameter = (*m)->parameter;
    (*m)->as.info.tradeoff = table->sweep_key ? &(*m)->tradeoff : NULL;
    return 0;
}

static int make_methods(library *l, const kvdim_plugin *p, kvd_err *err)
{
    for (; l->n < p->n_methods; l->n++) {
        if (make_method(l->path, p->method[l->n], &l->method[l->n], err)) {
            free(l->method[l->n]);
            return kvd_in(err, "method %zu", l->n);
        }
        for (size_t i = 0; i < l->n; i++)
            if (!strcmp(l->method[i]->as.info.name, l->method[l->n]->as.info.name)) {
                free(l->method[l->n]);
                return kvd_fail(err, "methods %zu and %zu have the same name", i, l->n);
            }
    }
    return 0;
}

static int check_table(const kvdim_plugin *p, kvd_err *err)
{
    if (!p)
        return kvd_fail(err, "kvdim_plugin_v1 returned NULL");
    if (p->abi_version != KVDIM_PLUGIN_ABI)
        return kvd_fail(err,
                        "kvdim_plugin_v1 returned ABI version %u, this kvdim has %d: build the "
                        "plugin with the headers of this kvdim",
                        p->abi_version, KVDIM_PLUGIN_ABI);
    if (p->struct_size != sizeof *p)
        return kvd_fail(err, "kvdim_plugin_v1 returned struct_size %u, this kvdim has %zu",
                        p->struct_size, sizeof *p);
    if (!is_line(p->version, VERSION))
        return kvd_fail(err, "version is not one line of 1 .. %d characters", VERSION);
    if (p->n_methods < 1 || p->n_methods > METHODS || !p->method)
        return kvd_fail(err, "n_methods is %u, not 1 .. %d", p->n_methods, METHODS);
    return 0;
}

/* Fails if the library file is truncated, because dlopen would then raise SIGBUS. */
static int check_whole(const char *path, off_t size, kvd_err *err)
{
    Elf64_Ehdr h;
    FILE *const f = fopen(path, "rb");
    if (!f)
        return kvd_fail_errno(err, "cannot open it");
    const size_t n = fread(&h, sizeof h, 1, f);
    fclose(f);
    if (n != 1 || memcmp(h.e_ident, ELFMAG, SELFMAG) || h.e_ident[EI_CLASS] != ELFCLASS64)
        return 0;
    const uint64_t table = (uint64_t)h.e_shnum * h.e_shentsize;
    if (h.e_shoff > (uint64_t)size || table > (uint64_t)size - h.e_shoff)
        return kvd_fail(err, "it is cut off: it has %llu bytes of at least %llu",
                        (unsigned long long)size, (unsigned long long)(h.e_shoff + table));
    return 0;
}

/* Returns true if the symbol at `address` is a variable, which cannot be called. */
static bool is_data(void *address)
{
    Dl_info info;
    void *found = NULL;
    if (!dladdr1(address, &info, &found, RTLD_DL_SYMENT) || !found)
        return false;
    return ELF64_ST_TYPE(((const ElfW(Sym) *)found)->st_info) == STT_OBJECT;
}

static int open_library(library *l, kvd_err *err)
{
    struct stat st;
    if (stat(l->path, &st))
        return kvd_fail_errno(err, "cannot open it");
    if (!S_ISREG(st.st_mode))
        return kvd_fail(err, "it is not a file");
    if (check_whole(l->path, st.st_size, err))
        return -1;
    /* An absolute path, because dlopen searches a name without a slash in system folders. */
    char *const path = realpath(l->path, NULL);
    if (!path)
        return kvd_fail_errno(err, "cannot open it");
    l->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    free(path);
    if (!l->handle)
        return kvd_fail(err, "cannot load it as a shared library: %s", dlerror());
    const kvdim_plugin *(*entry)(void);
    void *const symbol = dlsym(l->handle, "kvdim_plugin_v1");
    if (!symbol || is_data(symbol))
        return kvd_fail(err, "it has no function kvdim_plugin_v1 (kvdim/plugin.h)");
    memcpy(&entry, &symbol, sizeof entry);
    const kvdim_plugin *const p = entry();
    if (check_table(p, err))
        return -1;
    snprintf(l->version, sizeof l->version, "%s", p->version);
    return make_methods(l, p, err);
}

int kvd_plugin_load(const char *path, kvd_err *err)
{
    library l = {.path = path};
    if (n_loaded == LIBRARIES)
        return kvd_fail(err, "--plugin: more than %d are given", LIBRARIES);
    if (open_library(&l, err)) {
        while (l.n)
            free(l.method[--l.n]);
        if (l.handle)
            dlclose(l.handle);
        return kvd_in(err, "plugin '%s'", path);
    }
    loaded[n_loaded++] = l;
    return 0;
}

int kvd_plugin_option(void *config, const char *path, kvd_err *err)
{
    (void)config;
    return kvd_plugin_load(path, err);
}

const kvd_method_info *kvd_plugin_method_at(int i, kvd_plugin_kind *kind)
{
    size_t at = (size_t)i;
    for (int l = 0; l < n_loaded; at -= loaded[l++].n)
        if (at < loaded[l].n) {
            *kind = loaded[l].method[at]->kind;
            return &loaded[l].method[at]->as.info;
        }
    return NULL;
}

const char *kvd_plugin_path_at(int i)
{
    return i < n_loaded ? loaded[i].path : NULL;
}

bool kvd_plugin_has(int i, const kvd_method_info *m)
{
    for (size_t k = 0; k < loaded[i].n; k++)
        if (&loaded[i].method[k]->as.info == m)
            return true;
    return false;
}

int kvd_plugins_record(kvd_run *run, kvd_err *err)
{
    char text[400] = "";
    for (int i = 0; i < n_loaded; i++) {
        const size_t used = strlen(text);
        if (kvd_run_add_input(run, loaded[i].path, err))
            return -1;
        snprintf(text + used, sizeof text - used, "%s%s %s", i ? ", " : "", loaded[i].path,
                 loaded[i].version);
    }
    return n_loaded ? kvd_run_parameter(run, "plugin", err, "%s", text) : 0;
}

const kvd_plugin_method *kvd_plugin_of(const kvd_parameter_values *v)
{
    return (const kvd_plugin_method *)(const void *)v->method;
}

int kvd_plugin_open(const kvd_parameter_values *v, const kvd_method_setup *s,
                    int (*open)(const double *value, const kvdim_model *model, void **own,
                                char *error),
                    void (*close)(void *own), void **self, kvd_err *err)
{
    const kvd_plugin_method *const m = kvd_plugin_of(v);
    const kvdim_model model = kvd_plugin_model(s->config, s->seed);
    char error[KVDIM_ERROR_BYTES] = "";
    kvd_plugin_opened *const o = calloc(1, sizeof *o);
    if (!o)
        return kvd_no_memory(err, "a method", sizeof *o);
    *o = (kvd_plugin_opened){.method = m, .self = v->value, .close = close};
    if (open && open(v->value, &model, &o->own, error)) {
        free(o);
        return kvd_plugin_failed(m, "open", error, err);
    }
    if (open)
        o->self = o->own;
    *self = o;
    return 0;
}

void kvd_plugin_close(void *self)
{
    kvd_plugin_opened *const o = self;
    if (o->close)
        o->close(o->own);
    free(o);
}

kvd_plugin_method *kvd_plugin_flags(const kvd_plugin_method *m)
{
    return (kvd_plugin_method *)(uintptr_t)m;
}

int kvd_plugin_wrong(const kvd_plugin_method *m, const char *function, kvd_err *err,
                     const char *fmt, ...)
{
    char text[300];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    kvd_run_fail_as_usage();
    return kvd_fail(err, "plugin '%s': %s of method '%s' %s", m->path, function, m->api.method.name,
                    text);
}

int kvd_plugin_failed(const kvd_plugin_method *m, const char *function,
                      const char error[KVDIM_ERROR_BYTES], kvd_err *err)
{
    return kvd_fail(err, "plugin '%s': %s of method '%s' failed: %.*s", m->path, function,
                    m->api.method.name, KVDIM_ERROR_BYTES - 1,
                    *error ? error : "it gave no reason");
}

kvdim_model kvd_plugin_model(const kvd_config *c, uint64_t seed)
{
    return (kvdim_model){.struct_size = sizeof(kvdim_model),
                         .n_layers = c->n_layers,
                         .n_heads = c->n_heads,
                         .n_kv_heads = c->n_kv_heads,
                         .d_head = c->d_head,
                         .d_model = c->d_model,
                         .seed = seed};
}

unsigned kvd_plugin_needs(const kvdim_method *m)
{
    return (m->needs & KVDIM_NEEDS_PROBABILITIES ? (unsigned)KVD_NEEDS_PROBABILITIES : 0) |
           (m->needs & KVDIM_NEEDS_CALIBRATION ? (unsigned)KVD_NEEDS_ACTIVATIONS : 0) |
           (m->needs & KVDIM_NEEDS_SEED ? (unsigned)KVD_NEEDS_SEED : 0);
}

void kvd_guard_set(void *memory, size_t bytes)
{
    memset((char *)memory + bytes, 0xA5, KVD_GUARD);
}

bool kvd_guard_holds(const void *memory, size_t bytes)
{
    const unsigned char *const guard = (const unsigned char *)memory + bytes;
    for (size_t i = 0; i < KVD_GUARD; i++)
        if (guard[i] != 0xA5)
            return false;
    return true;
}

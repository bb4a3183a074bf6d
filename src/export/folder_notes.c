/* Writes rates.json and rotations.safetensors, which kvdim-export adds to a checkpoint folder. */
#include "export/export.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/json.h"
#include "model/checkpoint/safetensors.h"

static const char program[] = "kvdim-export";

static int kept_of(const kvd_dims_head *h, int side)
{
    return side ? h->d_v : h->d_qk;
}

/* Returns as JSON the number of kept dimensions, [layer][kv_head], of Q and K (`side` 0) or V (1).
 * If `padded`, numbers are rounded up to multiples of 16. */
static json_t *widths(const kvd_dims *d, int side, bool padded)
{
    json_t *const all = json_array();
    for (int l = 0; l < d->n_layers; l++) {
        json_t *const layer = json_array();
        for (int h = 0; h < d->n_kv_heads; h++) {
            const int kept = kept_of(&d->head[l * d->n_kv_heads + h], side);
            json_array_append_new(layer, json_integer(padded ? kvd_pad16(kept, d->d_head) : kept));
        }
        json_array_append_new(all, layer);
    }
    return all;
}

static json_t *side_json(const kvd_rates_note *n, int side)
{
    const kvd_dims *const d = &n->point->dims;
    const bool whole = !kvd_dims_cuts(d, side);
    return json_pack("{s:o, s:b, s:o, s:o}", "pair",
                     whole ? json_null() : json_string(kvd_pair_name[d->pair[side]]), "folded",
                     n->folds[side], "kept", widths(d, side, false), "kept16",
                     widths(d, side, true));
}

static json_t *model_json(const kvd_model_info *m)
{
    return json_pack("{s:s, s:s, s:s, s:i, s:i, s:i, s:i, s:i, s:s, s:s}", "name", m->name, "hash",
                     m->hash, "family", m->family, "n_layers", m->n_layers, "n_heads", m->n_heads,
                     "n_kv_heads", m->n_kv_heads, "d_head", m->d_head, "d_model", m->d_model,
                     "rope_layout", m->rope_layout, "dtype", m->dtype);
}

static json_t *calibration_json(const kvd_rates_note *n, kvd_err *err)
{
    const kvd_spectrum *const s = n->point->method->spectrum;
    char hash[KVD_BASES_HASH];
    if (kvd_spectrum_bases_hash(s, n->point->dims.pair, hash, err))
        return NULL;
    return json_pack("{s:s, s:s, s:I, s:I, s:s, s:s}", "label", s->label, "corpus_hash",
                     s->corpus_hash, "n_tokens", (json_int_t)s->n_tokens, "seq_len",
                     (json_int_t)s->seq_len, "rope", s->rope, "bases_hash", hash);
}

static json_t *provenance_json(const kvd_run *run)
{
    json_t *const inputs = json_array();
    for (int i = 0; i < run->n_inputs; i++) {
        const kvd_run_input *const in = &run->inputs[i];
        json_array_append_new(inputs, json_pack("{s:s, s:I, s:s, s:s, s:s}", "path", in->path,
                                                "bytes", (json_int_t)in->bytes, "hash", in->hash,
                                                "schema", in->schema, "git_revision", in->made_by));
    }
    return json_pack("{s:s, s:s, s:s, s:s, s:o}", "program", program, "git_revision",
                     kvd_git_revision(), "command_line", run->command_line, "started_utc",
                     run->started_utc, "inputs", inputs);
}

double kvd_rates_note_folded_p(const kvd_rates_note *n)
{
    const kvd_dims *const d = &n->point->dims;
    const int heads = d->n_layers * d->n_kv_heads;
    double kept = 0;
    for (int i = 0; i < heads; i++)
        for (int side = 0; side < 2; side++)
            kept += n->folds[side] ? kept_of(&d->head[i], side) : d->d_head;
    return 1 - kept / (2.0 * heads * d->d_head);
}

static double padded_p(const kvd_dims *d)
{
    const int heads = d->n_layers * d->n_kv_heads;
    double kept = 0;
    for (int i = 0; i < heads; i++)
        for (int side = 0; side < 2; side++)
            kept += kvd_pad16(kept_of(&d->head[i], side), d->d_head);
    return 1 - kept / (2.0 * heads * d->d_head);
}

int kvd_rates_note_write(const kvd_rates_note *n, const kvd_output *folder, kvd_err *err)
{
    json_t *const calibration = calibration_json(n, err);
    if (!calibration)
        return -1;
    json_t *const all = json_pack(
        "{s:s, s:i, s:s, s:s, s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:f, s:f, s:f, s:s, s:o, s:o, s:o, s:o, s:o}",
        "schema", "kvdim/export", "schema_version", 1, "form", n->form, "method",
        kvd_method_name(n->point->method), "settings", n->point->method->settings, "rule",
        n->point->rule, "point", n->index < 0 ? json_null() : json_integer(n->index),
        "removal_rate", kvd_json_real(n->point->removal_rate), "p_wanted",
        kvd_json_real(n->point->p_wanted), "scale", json_real(n->scale), "softcap",
        n->softcap > 0 ? json_real(n->softcap) : json_null(), "overall_p", n->point->overall_p,
        "overall_p16", padded_p(&n->point->dims), "folded_p", kvd_rates_note_folded_p(n), "dtype",
        n->dtype, "qk", side_json(n, 0), "v", side_json(n, 1), "model", model_json(n->model),
        "calibration", calibration, "provenance", provenance_json(n->run));
    char *const text = all ? json_dumps(all, JSON_INDENT(1)) : NULL;
    json_decref(all);
    if (!text)
        return kvd_fail(err, "rates.json: a text is not UTF-8, or memory ran out");
    const int status = kvd_output_folder_text(folder, "rates.json", text, strlen(text), err);
    free(text);
    return status;
}

static bool holds_files_alone(const char *folder)
{
    DIR *const dir = opendir(folder);
    bool files = dir != NULL;
    for (const struct dirent *d; files && (d = readdir(dir));) {
        struct stat st;
        files = !strcmp(d->d_name, ".") || !strcmp(d->d_name, "..") ||
                (!fstatat(dirfd(dir), d->d_name, &st, AT_SYMLINK_NOFOLLOW) && S_ISREG(st.st_mode));
    }
    if (dir)
        closedir(dir);
    return files;
}

bool kvd_rates_note_found(const char *folder)
{
    char *path;
    if (!holds_files_alone(folder) || asprintf(&path, "%s/rates.json", folder) < 0)
        return false;
    json_t *const root = json_load_file(path, 0, NULL);
    free(path);
    const char *const schema = json_string_value(json_object_get(root, "schema"));
    const bool ours = schema && !strcmp(schema, "kvdim/export");
    json_decref(root);
    return ours;
}

enum { MATRICES = 4, NAME = 64 };
static const char *const matrix_name[MATRICES] = {"a_q", "a_k", "a_v", "b_v"};

typedef struct {
    kvd_tensor_spec spec;
    char name[NAME];
    const float *data;
} rotation;

/* Returns a projection matrix of a head and its shape, or NULL if the head has none. k is 0 for the
 * projection of Q, 1 for K, 2 for V, and 3 for the matrix that reconstructs V. */
static const float *matrix_of(const kvd_dims_head *h, int k, int d_head, size_t dims[2])
{
    const float *const data[MATRICES] = {h->a_q, h->a_k, h->a_v, h->b_v};
    const int width = k < 2 ? h->d_qk : h->d_v;
    dims[0] = (size_t)(k == 3 ? width : d_head);
    dims[1] = (size_t)(k == 3 ? d_head : width);
    return data[k];
}

static size_t list(const kvd_dims *dims, rotation *all)
{
    size_t n = 0;
    for (int i = 0; i < dims->n_layers * dims->n_kv_heads; i++)
        for (int k = 0; k < MATRICES; k++) {
            rotation *const r = &all[n];
            *r = (rotation){.spec = {.dtype = "F32", .rank = 2}};
            r->data = matrix_of(&dims->head[i], k, dims->d_head, r->spec.dims);
            if (!r->data)
                continue;
            snprintf(r->name, sizeof r->name, "layers.%d.kv_heads.%d.%s", i / dims->n_kv_heads,
                     i % dims->n_kv_heads, matrix_name[k]);
            n++;
        }
    return n;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const rotation *)a)->name, ((const rotation *)b)->name);
}

static int write_file(const char *path, const kvd_dims *dims, rotation *all, kvd_tensor_spec *spec,
                      kvd_err *err)
{
    const size_t n = list(dims, all);
    if (n)
        qsort(all, n, sizeof *all, by_name);
    for (size_t i = 0; i < n; i++) {
        spec[i] = all[i].spec;
        spec[i].name = all[i].name;
    }
    const kvd_safetensors_note notes[] = {{"format", "pt"}, {"method", dims->method}, {NULL, NULL}};
    kvd_safetensors_writer *const w = kvd_safetensors_create(path, spec, n, notes, err);
    if (!w)
        return -1;
    for (size_t i = 0; i < n; i++)
        if (kvd_safetensors_append(w, spec[i].name, all[i].data,
                                   spec[i].dims[0] * spec[i].dims[1] * sizeof(float), err)) {
            kvd_safetensors_abandon(w);
            return -1;
        }
    return kvd_safetensors_finish(w, err);
}

int kvd_rotations_write(const kvd_dims *dims, const kvd_output *folder, kvd_err *err)
{
    const size_t n = (size_t)dims->n_layers * (size_t)dims->n_kv_heads * MATRICES;
    char *const path = kvd_output_folder_file(folder, "rotations.safetensors", err);
    rotation *const all = calloc(n, sizeof *all);
    kvd_tensor_spec *const spec = calloc(n, sizeof *spec);
    int status = -1;
    if (path && (!all || !spec))
        kvd_no_memory(err, "a list of rotations",
                      (unsigned long long)n * (sizeof *all + sizeof *spec));
    else if (path)
        status = write_file(path, dims, all, spec, err);
    free(all);
    free(spec);
    free(path);
    return status;
}

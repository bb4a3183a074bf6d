/* Reads and checks a memory-mapped GGUF file, versions 2 and 3, little-endian
 * (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md). */
#ifndef KVD_MODEL_CHECKPOINT_GGUF_H
#define KVD_MODEL_CHECKPOINT_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "model/checkpoint/config.h"
#include "model/checkpoint/tensor.h"

enum { KVD_GGUF_NAME = 64 }; /* bytes of a tensor's name and terminating zero */

typedef struct kvd_gguf kvd_gguf;

kvd_gguf *kvd_gguf_open(const char *path, kvd_err *err);
/* Opens GGUF bytes in memory, which must outlive the result. `name` is for messages. */
kvd_gguf *kvd_gguf_parse(const char *name, const void *bytes, size_t len, kvd_err *err);
void kvd_gguf_close(kvd_gguf *g);

const char *kvd_gguf_path(const kvd_gguf *g);

/* Functions from kvd_gguf_whole to kvd_gguf_reals return 0, or 1 if the file lacks the key, or -1
 * if its value has another type. */

/* Reads the value of a GGUF key: an integer of any width, signed or unsigned. */
int kvd_gguf_whole(const kvd_gguf *g, const char *key, int64_t *out, kvd_err *err);
/* Reads the value of a GGUF key: a float32 or float64 number. */
int kvd_gguf_real(const kvd_gguf *g, const char *key, double *out, kvd_err *err);
int kvd_gguf_bool(const kvd_gguf *g, const char *key, bool *out, kvd_err *err);
/* Finds the text stored under a GGUF key. *s points to the text in the mapped file, and *len is its
 * length in bytes. No zero byte ends the text. */
int kvd_gguf_text(const kvd_gguf *g, const char *key, const char **s, size_t *len, kvd_err *err);

/* iterator over an array in GGUF metadata; an iterator of zeros is at the end */
typedef struct {
    const unsigned char *at;
    uint32_t type;
    size_t left;
} kvd_gguf_list;

int kvd_gguf_texts(const kvd_gguf *g, const char *key, kvd_gguf_list *list, kvd_err *err);
int kvd_gguf_wholes(const kvd_gguf *g, const char *key, kvd_gguf_list *list, kvd_err *err);
int kvd_gguf_reals(const kvd_gguf *g, const char *key, kvd_gguf_list *list, kvd_err *err);
/* Each of these functions reads the next item of a list and returns true, or returns false at the
 * end of the list. */
bool kvd_gguf_next_text(kvd_gguf_list *list, const char **s, size_t *len);
bool kvd_gguf_next_whole(kvd_gguf_list *list, int64_t *out);
bool kvd_gguf_next_real(kvd_gguf_list *list, double *out);

size_t kvd_gguf_count(const kvd_gguf *g);
/* Returns the name of tensor i, valid until kvd_gguf_close. */
const char *kvd_gguf_name(const kvd_gguf *g, size_t i);
/* Returns the index of the tensor `name`, or the result of kvd_gguf_count if there is none. */
size_t kvd_gguf_find(const kvd_gguf *g, const char *name);
/* Describes tensor i, of shape [rows][columns], in *out. Fails if the tensor's number type is not
 * supported. */
int kvd_gguf_tensor(const kvd_gguf *g, size_t i, kvd_tensor *out, kvd_err *err);

/* a model in a GGUF file, with names and order of rows as in Hugging Face files */

typedef struct kvd_gguf_model kvd_gguf_model;

/* Opens a GGUF model and fills its configuration *c. */
kvd_gguf_model *kvd_gguf_model_open(const char *path, kvd_config *c, kvd_err *err);
/* Opens a GGUF model from bytes in memory, which must outlive the result. `name` is for
 * messages. */
kvd_gguf_model *kvd_gguf_model_parse(const char *name, const void *bytes, size_t len, kvd_config *c,
                                     kvd_err *err);
void kvd_gguf_model_close(kvd_gguf_model *m);

/* Return the number of weights, and the Hugging Face name of weight i. */
size_t kvd_gguf_model_count(const kvd_gguf_model *m);
const char *kvd_gguf_model_name(const kvd_gguf_model *m, size_t i);

/* Finds a tensor by its Hugging Face name. Returns 1 if the model has no such tensor. */
int kvd_gguf_model_find(const kvd_gguf_model *m, const char *name, kvd_tensor *out, kvd_err *err);

bool kvd_gguf_model_has_tokenizer(const kvd_gguf_model *m);

/* Returns true if a GGUF tensor holds divisors of RoPE frequencies, which belong to the
 * configuration and are no weights. */
bool kvd_gguf_is_setting(const char *tensor);

/* Reads the model's configuration from the metadata of a GGUF file. Error messages name the
 * corresponding keys of config.json. */
int kvd_gguf_config(const kvd_gguf *g, kvd_config *c, kvd_err *err);

#endif

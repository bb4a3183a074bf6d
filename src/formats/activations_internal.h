/* Layout of kvdim/activations files, shared by activations.c and activations_write.c. */
#ifndef KVD_FORMATS_ACTIVATIONS_INTERNAL_H
#define KVD_FORMATS_ACTIVATIONS_INTERNAL_H

#include <sys/types.h>

#include "formats/activations.h"

/* datasets of the HDF5 group /tokens */
enum { TOKEN_ID, TOKEN_SEQUENCE, TOKEN_POSITION, N_TOKEN };

extern const char *const kvd_activations_path[KVD_N_SETS];

hid_t kvd_activations_type(kvd_dtype t);
/* Returns true if the file has dataset number `set`, such as KVD_X_K (keys). */
bool kvd_activations_has(const kvd_activations *a, int set);
kvd_h5_spec kvd_activations_spec(const kvd_activations *a, int set);

/* Marks all datasets of *a as closed and all checksums as absent, without freeing anything. */
void kvd_activations_forget(kvd_activations *a);
/* Closes the datasets and frees the checksums. The file stays open. */
void kvd_activations_release(kvd_activations *a);
void kvd_activations_drop(hid_t *id);
/* Reads model, sizes and label from a->file. */
int kvd_activations_describe(kvd_activations *a, kvd_err *err);

void kvd_activations_locate(kvd_activations *a);
off_t kvd_activations_place(const kvd_activations *a, kvd_x x, int layer, int head, size_t first);

/* rows that a function reads: one head of a tensor, or a whole dataset */
typedef struct {
    kvd_activations *a;
    int set, layer, head;
    hid_t dataset; /* unused if the file offset of the dataset is known */
} kvd_head_rows;

/* Reads n rows without verifying their checksums. `ctx` points to a kvd_head_rows. */
int kvd_activations_read_raw(void *ctx, size_t first, size_t n, void *rows, kvd_err *err);

#endif

/* Fuzzes the reader of HDF5 files: on a damaged file, only the child process that reads it may
 * crash. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/files/h5.h"

const char *__asan_default_options(void);

/* Makes malloc return NULL for absurd sizes. By default, AddressSanitizer ends the program
 * instead. */
const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1:detect_leaks=0";
}

static void read_values(kvd_h5 *f)
{
    enum { MOST = 1 << 16 };
    kvd_err err;
    hsize_t dims[2];
    int64_t n;
    char *text = NULL;
    if (!kvd_h5_get_text(f, "/", "history", &text, &err))
        free(text);
    (void)kvd_h5_get_int(f, "/provenance", "input_count", &n, &err);
    if (kvd_h5_shape(f, "/values", 2, dims, &err) || dims[0] > MOST || dims[1] > MOST ||
        dims[0] * dims[1] > MOST)
        return;
    double *x = malloc((size_t)(dims[0] * dims[1]) * sizeof *x + 1);
    if (x)
        (void)kvd_h5_read_finite(f, "/values", 2, dims, x, &err);
    free(x);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const kvd_schema schema = {"test", 1, "A small file for tests."};
    char path[64], name[64];
    kvd_err err;
    kvd_h5 f;
    const int fd = memfd_create("fuzz", MFD_CLOEXEC);
    if (fd < 0)
        return 0;
    if (write(fd, data, size) == (ssize_t)size) {
        (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        if (!kvd_h5_open(&f, path, &schema, &err)) {
            read_values(&f);
            kvd_h5_close(&f, false);
        }
        (void)kvd_h5_peek_schema(path, name, sizeof name, &err);
    }
    close(fd);
    return 0;
}

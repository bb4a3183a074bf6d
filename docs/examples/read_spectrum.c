/* Example that reads a kvdim/spectrum file with the HDF5 library alone: prints the singular values
 * of one head, and checks that the head's rotation R is orthogonal.
 *
 * usage: read_spectrum FILE PAIR LAYER HEAD
 *
 * PAIR names the two matrices: qk (queries and keys), vw (values and output projection) or another
 * pair in the file. */
#include <hdf5.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Noreturn static void die(const char *what)
{
    fprintf(stderr, "read_spectrum: %s\n", what);
    exit(1);
}

/* Reads a text attribute of fixed length (at most 127 bytes), padded with zero bytes. */
static void get_text(hid_t file, const char *object, const char *name, char text[128])
{
    const hid_t a = H5Aopen_by_name(file, object, name, H5P_DEFAULT, H5P_DEFAULT),
                t = H5Aget_type(a);
    memset(text, 0, 128);
    if (a < 0 || H5Tget_size(t) > 127 || H5Aread(a, t, text) < 0)
        die(name);
    H5Tclose(t);
    H5Aclose(a);
}

static long long get_int(hid_t file, const char *object, const char *name)
{
    long long value = 0;
    const hid_t a = H5Aopen_by_name(file, object, name, H5P_DEFAULT, H5P_DEFAULT);
    if (a < 0 || H5Aread(a, H5T_NATIVE_LLONG, &value) < 0)
        die(name);
    H5Aclose(a);
    return value;
}

/* Reads one head of a dataset [layer][head][d] or [layer][head][d][d] into new memory. Sets *d. */
static double *get_head(hid_t file, const char *pair, const char *name, int rank, hsize_t layer,
                        hsize_t head, size_t *d)
{
    char path[64];
    hsize_t dims[4] = {0}, start[4] = {layer, head}, count[4] = {1, 1};
    snprintf(path, sizeof path, "/%s/%s", pair, name);
    const hid_t set = H5Dopen2(file, path, H5P_DEFAULT), space = H5Dget_space(set);
    if (set < 0 || H5Sget_simple_extent_ndims(space) != rank ||
        H5Sget_simple_extent_dims(space, dims, NULL) < 0)
        die(path);
    *d = (size_t)dims[2];
    for (int i = 2; i < rank; i++)
        count[i] = dims[i];
    const hid_t memory = H5Screate_simple(rank, count, NULL);
    double *x = malloc(*d * (rank == 4 ? *d : 1) * sizeof *x);
    if (!x || layer >= dims[0] || head >= dims[1] ||
        H5Sselect_hyperslab(space, H5S_SELECT_SET, start, NULL, count, NULL) < 0 ||
        H5Dread(set, H5T_NATIVE_DOUBLE, memory, space, H5P_DEFAULT, x) < 0)
        die(path);
    H5Sclose(memory);
    H5Sclose(space);
    H5Dclose(set);
    return x;
}

int main(int argc, char **argv)
{
    char schema[128], label[128], rope[128], pairing[128], group[64];
    size_t d, d_R;
    if (argc != 5)
        die("usage: read_spectrum FILE PAIR LAYER HEAD");
    const hid_t file = H5Fopen(argv[1], H5F_ACC_RDONLY, H5P_DEFAULT);
    if (file < 0)
        die("cannot open the file");
    get_text(file, "/", "schema", schema);
    if (strcmp(schema, "kvdim/spectrum") || get_int(file, "/", "complete") != 1)
        die("no complete kvdim/spectrum file");
    const char *pair = argv[2];
    const hsize_t layer = strtoull(argv[3], NULL, 10), head = strtoull(argv[4], NULL, 10);
    snprintf(group, sizeof group, "/%s", pair);
    get_text(file, "/", "label", label);
    get_text(file, "/", "rope", rope);
    get_text(file, group, "pairing", pairing);
    double *sigma = get_head(file, pair, "sigma", 3, layer, head, &d);
    double *R = get_head(file, pair, "R", 4, layer, head, &d_R);

    printf("pair %s, layer %llu, head %llu of '%s' (%s RoPE, %s): %lld rows of %zu\n", pair,
           (unsigned long long)layer, (unsigned long long)head, label, rope, pairing,
           get_int(file, group, "n_rows"), d);
    printf("sigma:");
    for (size_t i = 0; i < d; i++)
        printf(" %.6g", sigma[i]);

    double off = 0;
    for (size_t i = 0; i < d; i++)
        for (size_t j = 0; j < d; j++) {
            double product = i == j ? -1 : 0;
            for (size_t k = 0; k < d; k++)
                product += R[k * d + i] * R[k * d + j];
            off = fmax(off, fabs(product));
        }
    printf("\northogonal: max |R^T R - I| is %s 1e-12\n", off < 1e-12 ? "below" : "NOT below");

    /* Energy: sum of all squared singular values. */
    double total = 0;
    for (size_t j = 0; j < d; j++)
        total += sigma[j] * sigma[j];
    const size_t widths[] = {d / 4, d / 2, 3 * d / 4, d};
    for (int i = 0; i < 4; i++) {
        double kept = 0;
        for (size_t j = 0; j < widths[i]; j++)
            kept += sigma[j] * sigma[j];
        printf("energy kept at %zu of %zu dimensions: %.6f\n", widths[i], d, kept / total);
    }
    free(R);
    free(sigma);
    H5Fclose(file);
    return off < 1e-12 ? 0 : 1;
}

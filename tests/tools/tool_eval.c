/* usage: tool_eval change IN.h5 OUT.h5 WHAT
 *
 * Copies a spectrum file (singular values and rotation matrices) with one fault, named WHAT:
 *
 * - hash: the hash of the model's weights is 0
 * - before: the file says that its rotations are for keys before RoPE
 * - layers: the last layer is missing
 * - rotation: one element of a rotation matrix differs from the original */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/spectrum.h"

static int spoil_rotation(const char *path, kvd_err *err)
{
    double *R = NULL;
    const hid_t f = H5Fopen(path, H5F_ACC_RDWR, H5P_DEFAULT);
    const hid_t d = f < 0 ? f : H5Dopen2(f, "/qk/R", H5P_DEFAULT);
    const hid_t s = d < 0 ? d : H5Dget_space(d);
    const hssize_t n = s < 0 ? 0 : H5Sget_simple_extent_npoints(s);
    int status = -1;
    if (n > 100 && (R = malloc((size_t)n * sizeof *R)) &&
        H5Dread(d, H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, R) >= 0) {
        R[100] += 0.01;
        status = H5Dwrite(d, H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, R) < 0 ? -1 : 0;
    }
    free(R);
    if (s >= 0)
        H5Sclose(s);
    if (d >= 0)
        H5Dclose(d);
    if (f < 0 || H5Fclose(f) < 0 || status)
        return kvd_fail(err, "cannot change '%s'", path);
    return 0;
}

static int change(const char *in, const char *out, const char *what, const kvd_run *run,
                  kvd_err *err)
{
    kvd_spectrum s;
    kvd_h5 f;
    if (kvd_spectrum_load(&s, in, err))
        return -1;
    if (!strcmp(what, "hash"))
        memset(s.model.hash + 5, '0', 32);
    else if (!strcmp(what, "before"))
        strcpy(s.rope, "before");
    else if (!strcmp(what, "layers"))
        s.n_layers--;
    if (kvd_h5_create(&f, out, &kvd_schema_spectrum, run, err) || kvd_spectrum_write(&f, &s, err) ||
        kvd_h5_finish(&f, err))
        return -1;
    kvd_spectrum_release(&s);
    return strcmp(what, "rotation") ? 0 : spoil_rotation(out, err);
}

int main(int argc, char **argv)
{
    kvd_common_options opt = {.seed = 1};
    kvd_run run;
    kvd_err err = {"usage: see the first lines of tool_eval.c"};
    int status = kvd_run_start(&run, "tool_eval", argc, argv, &opt, &err);
    if (!status && argc == 5 && !strcmp(argv[1], "change"))
        status = change(argv[2], argv[3], argv[4], &run, &err);
    else
        status = -1;
    kvd_run_release(&run);
    return kvd_run_exit("tool_eval", status, &err);
}

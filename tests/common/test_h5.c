/* Tests HDF5 files, including one that a killed program left. */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/half.h"
#include "common/rng.h"
#include "h5_case.h"
#include "unit.h"

TEST(test_round_trip)
{
    kvd_h5 f;
    double x[A * B * C], d;
    int64_t v;
    int32_t small[2];
    hsize_t dims[3];
    char name[32];
    write_file();
    assert_int_equal(access(partial, F_OK), -1);
    ok(kvd_h5_open(&f, path, &schema, &err));
    ok(kvd_h5_shape(&f, "/qk/sigma", 3, dims, &err));
    assert_true(dims[0] == A && dims[1] == B && dims[2] == C);
    ok(kvd_h5_read_finite(&f, "/qk/sigma", 3, dims, x, &err));
    for (int i = 0; i < A * B * C; i++)
        assert_true(x[i] == i * 0.5);
    text_is(&f, "/", "schema", "kvdim/test");
    text_is(&f, "/", "title", "A test.");
    text_is(&f, "/model", "name", "demo");
    text_is(&f, "/qk/sigma", "long_name", "Singular values.");
    text_is(&f, "/qk/sigma", "rope", "after");
    text_is(&f, "/provenance", "program", "kvdim-test");
    text_is(&f, "/provenance", "command_line", "kvdim-test 'a b'");
    text_is(&f, "/provenance", "git_revision", kvd_git_revision());
    text_is(&f, "/provenance/inputs/0", "path", input);
    text_is(&f, "/provenance/inputs/0", "hash", run.inputs[0].hash);
    text_is(&f, "/parameters", "tokens", "7");
    ok(kvd_h5_get_int(&f, "/model", "n_layers", &v, &err));
    assert_int_equal(v, 6);
    ok(kvd_h5_get_double(&f, "/model", "n_layers", &d, &err));
    assert_true(d == 6);
    ok(kvd_h5_get_double(&f, "/model", "rope_theta", &d, &err));
    assert_true(d == 1e4);
    ok(kvd_h5_get_int(&f, "/provenance", "input_count", &v, &err));
    assert_int_equal(v, 1);
    assert_true(kvd_h5_exists(&f, "/qk/sigma") && kvd_h5_exists(&f, "/qk") &&
                kvd_h5_exists(&f, "/"));
    assert_false(kvd_h5_exists(&f, "/qk/R") || kvd_h5_exists(&f, "/no/such/thing"));
    assert_int_equal(kvd_h5_get_int(&f, "/provenance", "seed", &v, &err), -1);
    says(
        "'%s' attribute '/provenance/seed' is 18446744073709551615, more than 9223372036854775807");
    assert_int_equal(kvd_h5_get_int(&f, "/model", "rope_theta", &v, &err), -1);
    says("'%s' attribute '/model/rope_theta' is not a whole number");
    assert_int_equal(kvd_h5_get_double(&f, "/model", "name", &d, &err), -1);
    says("'%s' attribute '/model/name' is not a number");
    assert_int_equal(kvd_h5_get_int(&f, "/model", "d_head", &v, &err), -1);
    says("'%s' has no attribute '/model/d_head'");
    assert_int_equal(kvd_h5_get_int(&f, "/nothing", "d_head", &v, &err), -1);
    says("'%s' has no /nothing");
    assert_int_equal(kvd_h5_shape(&f, "/qk/sigma", 2, dims, &err), -1);
    says("'%s' /qk/sigma has rank 3, 2 is wanted");
    assert_int_equal(kvd_h5_shape(&f, "/qk/R", 2, dims, &err), -1);
    says("'%s' has no dataset /qk/R");
    assert_int_equal(kvd_h5_shape(&f, "/qk", 2, dims, &err), -1);
    says("'%s' has no dataset /qk");
    dims[2] = C + 1;
    assert_int_equal(kvd_h5_read(&f, "/qk/sigma", 3, dims, H5T_NATIVE_DOUBLE, x, &err), -1);
    says("'%s' /qk/sigma has the shape [3][4][5], [3][4][6] is wanted");
    dims[2] = C;
    assert_int_equal(kvd_h5_read(&f, "/qk/sigma", 3, dims, H5T_NATIVE_INT, x, &err), -1);
    says("'%s' /qk/sigma does not hold whole numbers");
    dims[0] = 2;
    assert_int_equal(kvd_h5_read(&f, "/ids", 1, dims, H5T_NATIVE_INT32, small, &err), -1);
    says("'%s' /ids holds a number that is too large for its reader");
    kvd_h5_close(&f, false);
    kvd_h5_close(&f, false);
    ok(kvd_h5_peek_schema(path, name, sizeof name, &err));
    assert_string_equal(name, "test");
    assert_int_equal(kvd_h5_peek_schema(path, name, 4, &err), -1);
    kvd_run again = {0};
    ok(kvd_run_add_input(&again, path, &err));
    assert_string_equal(again.inputs[0].schema, "kvdim/test");
    assert_string_equal(again.inputs[0].made_by, kvd_git_revision());
    kvd_run_release(&again);
}

TEST(test_not_finite)
{
    kvd_h5 f;
    const hsize_t dims[3] = {A, B, C};
    const double bad[2] = {NAN, INFINITY};
    for (int k = 0; k < 2; k++) {
        double x[A * B * C] = {0};
        const kvd_h5_spec s = values_spec();
        x[(2 * B + 0) * C + 3] = bad[k];
        ok(kvd_h5_create(&f, path, &schema, &run, &err));
        ok(kvd_h5_write(&f, &s, H5T_NATIVE_DOUBLE, x, &err));
        ok(kvd_h5_finish(&f, &err));
        ok(kvd_h5_open(&f, path, &schema, &err));
        assert_int_equal(kvd_h5_read_finite(&f, "/qk/sigma", 3, dims, x, &err), -1);
        says(k ? "'%s' /qk/sigma[2][0][3] is infinite" : "'%s' /qk/sigma[2][0][3] is nan");
        kvd_h5_close(&f, false);
    }
}

/* Tests datasets of several sizes. Datasets above 256 bytes are compressed; all threads compress a
 * dataset above 16 MiB. */
TEST(test_sizes)
{
    static const hsize_t shapes[][3] = {{1, 1, 1},     {1, 2, 16},     {1, 3, 11}, {2, 64, 64},
                                        {3, 700, 300}, {1, 3, 400000}, {0, 3, 2},  {2, 1, 1500001},
                                        {5, 900, 700}, {43, 8, 8192}};
    for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) {
        const hsize_t *d = shapes[k];
        const size_t n = (size_t)(d[0] * d[1] * d[2]);
        double *x = unit_alloc((n + 1) * sizeof *x), *y = unit_alloc((n + 1) * sizeof *y);
        kvd_rng r;
        kvd_rng_seed(&r, k, 0);
        for (size_t i = 0; i < n; i++)
            x[i] = kvd_rng_normal(&r);
        kvd_h5 f;
        kvd_h5_spec s = values_spec();
        memcpy(s.dims, d, 3 * sizeof *d);
        ok(kvd_h5_create(&f, path, &schema, &run, &err));
        ok(kvd_h5_write(&f, &s, H5T_NATIVE_DOUBLE, x, &err));
        ok(kvd_h5_finish(&f, &err));
        ok(kvd_h5_open(&f, path, &schema, &err));
        ok(kvd_h5_read(&f, s.path, 3, d, H5T_NATIVE_DOUBLE, y, &err));
        assert_memory_equal(x, y, n * sizeof *x);
        const hid_t set = H5Dopen2(f.id, s.path, H5P_DEFAULT), made = H5Dget_create_plist(set);
        assert_int_equal(H5Pget_layout(made), n * 8 > 256 ? H5D_CHUNKED : H5D_COMPACT);
        assert_int_equal(H5Pget_nfilters(made), n * 8 > 256 ? 3 : 0);
        H5Pclose(made);
        H5Dclose(set);
        kvd_h5_close(&f, false);
    }
}

TEST(test_no_pattern)
{
    enum { N = (17 << 20) + 1 };
    uint8_t *x = unit_alloc(N), *y = unit_alloc(N);
    kvd_rng r;
    kvd_rng_seed(&r, 1, 0);
    for (size_t i = 0; i < N; i++)
        x[i] = (uint8_t)kvd_rng_u64(&r);
    kvd_h5 f;
    const hsize_t n = N, first[1] = {0};
    hsize_t stored = 0;
    unsigned mask = 0;
    const kvd_h5_spec s = {"/noise", "Noise.", "1", H5T_STD_U8LE, 1, {n}, {"i"}};
    ok(kvd_h5_create(&f, path, &schema, &run, &err));
    ok(kvd_h5_write(&f, &s, H5T_STD_U8LE, x, &err));
    ok(kvd_h5_finish(&f, &err));
    ok(kvd_h5_open(&f, path, &schema, &err));
    ok(kvd_h5_read(&f, "/noise", 1, &n, H5T_STD_U8LE, y, &err));
    assert_memory_equal(x, y, N);
    const hid_t set = H5Dopen2(f.id, "/noise", H5P_DEFAULT);
    assert_true(H5Dget_chunk_info_by_coord(set, first, &mask, NULL, &stored) >= 0);
    assert_int_equal(mask, 2);
    assert_int_equal(stored, (4 << 20) + 4);
    H5Dclose(set);
    kvd_h5_close(&f, false);
}

TEST(test_half_types)
{
    const float x[4] = {1.5f, -0.1f, 65504.f, 0x1p-24f};
    const kvd_dtype types[2] = {KVD_F16, KVD_BF16};
    for (int k = 0; k < 2; k++) {
        kvd_h5 f;
        uint16_t half[4];
        float want[4], got[4];
        const hsize_t dims[1] = {4};
        const hid_t type = k ? kvd_h5_type_bf16() : kvd_h5_type_f16();
        const kvd_h5_spec s = {"/x", "Halves.", "1", type, 1, {4}, {"i"}};
        kvd_from_f32(types[k], x, half, 4);
        kvd_to_f32(types[k], half, want, 4);
        ok(kvd_h5_create(&f, path, &schema, &run, &err));
        ok(kvd_h5_write(&f, &s, type, half, &err));
        ok(kvd_h5_finish(&f, &err));
        ok(kvd_h5_open(&f, path, &schema, &err));
        ok(kvd_h5_read(&f, "/x", 1, dims, H5T_NATIVE_FLOAT, got, &err));
        assert_memory_equal(want, got, sizeof want);
        kvd_h5_close(&f, false);
    }
}

TEST(test_refused_datasets)
{
    kvd_h5 f;
    double x[A * B * C] = {0};
    kvd_h5_spec s = values_spec();
    ok(kvd_h5_create(&f, path, &schema, &run, &err));
    ok(kvd_h5_write(&f, &s, H5T_NATIVE_DOUBLE, x, &err));
    assert_int_equal(kvd_h5_write(&f, &s, H5T_NATIVE_DOUBLE, x, &err), -1);
    says("'%s' already holds /qk/sigma");
    s.path = "/y", s.long_name = "";
    FAILS(kvd_h5_write(&f, &s, H5T_NATIVE_DOUBLE, x, &err),
          "dataset '/y' needs a path, a long_name and units");
    s.long_name = "Y.", s.axes[1] = NULL;
    FAILS(kvd_h5_write(&f, &s, H5T_NATIVE_DOUBLE, x, &err), "dataset '/y' has no name for axis 1");
    s.axes[1] = "head", s.dims[0] = (hsize_t)1 << 62;
    FAILS(kvd_h5_write(&f, &s, H5T_NATIVE_DOUBLE, x, &err), "dataset '/y' is too large");
    kvd_h5_close(&f, false);
    assert_int_equal(access(partial, F_OK), -1);
}

TEST(test_slabs)
{
    kvd_h5 f;
    hid_t set;
    const kvd_h5_spec s = {"/k", "K.", "1", kvd_h5_type_bf16(), 2, {8, 4}, {"token", "dim"}};
    ok(kvd_h5_create(&f, path, &schema, &run, &err));
    ok(kvd_h5_reserve(&f, &s, &set, &err));
    ok(kvd_h5_sync(&f, &err));
    uint16_t row[4] = {0}, got[8];
    for (uint16_t i = 0; i < 8; i++) {
        const hsize_t start[2] = {i, 0}, count[2] = {1, 4};
        for (int j = 0; j < 4; j++)
            row[j] = (uint16_t)(100 * i + j);
        ok(kvd_h5_write_slab(set, "/k", 2, start, count, kvd_h5_type_bf16(), row, &err));
    }
    const hsize_t start[2] = {5, 1}, count[2] = {2, 3}, beyond[2] = {7, 0};
    ok(kvd_h5_read_slab(set, "/k", 2, start, count, kvd_h5_type_bf16(), got, &err));
    assert_true(got[0] == 501 && got[2] == 503 && got[3] == 601 && got[5] == 603);
    FAILS(kvd_h5_read_slab(set, "/k", 2, beyond, count, kvd_h5_type_bf16(), got, &err),
          "/k: axis 0 ends at 8, 2 values from 7 are asked for");
    assert_true(H5Dclose(set) >= 0);
    ok(kvd_h5_finish(&f, &err));
}

TEST(test_nothing_appears_before_the_end)
{
    kvd_h5 f, second;
    unlink(path);
    ok(kvd_h5_create(&f, path, &schema, &run, &err));
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(kvd_h5_create(&second, path, &schema, &run, &err), -1);
    says_in("is being written by another program");
    assert_int_equal(access(partial, F_OK), 0);
    kvd_h5_close(&f, true);
    assert_int_equal(access(partial, F_OK), 0);
    assert_int_equal(access(path, F_OK), -1);
    unlink(partial);
}

TEST(test_reopen)
{
    kvd_h5 f;
    unlink(path);
    unlink(partial);
    ok(kvd_h5_reopen(&f, path, &schema, &run, &err));
    assert_true(f.id < 0);
    ok(kvd_h5_create_locked(&f, &schema, &err));
    ok(kvd_h5_put_int(&f, "/", "rows_done", 3, &err));
    ok(kvd_h5_put_double(&f, "/provenance", "elapsed_s", 1000, &err));
    kvd_h5_close(&f, true);
    assert_int_equal(kvd_h5_reopen(&f, path, &other, &run, &err), -1);
    says("cannot resume: '%s' holds kvdim/test, kvdim/other is wanted; remove '%s.partial' or run "
         "without --resume");
    const kvd_schema newer = {"test", 3, "A test."};
    assert_int_equal(kvd_h5_reopen(&f, path, &newer, &run, &err), -1);
    ok(kvd_h5_reopen(&f, path, &schema, &run, &err));
    int64_t done = 0;
    ok(kvd_h5_get_int(&f, "/", "rows_done", &done, &err));
    assert_int_equal(done, 3);
    ok(kvd_h5_finish(&f, &err));
    ok(kvd_h5_open(&f, path, &schema, &err));
    double elapsed;
    ok(kvd_h5_get_double(&f, "/provenance", "elapsed_s", &elapsed, &err));
    assert_true(elapsed >= 1000 && elapsed < 1100);
    char *history = NULL;
    ok(kvd_h5_get_text(&f, "/", "history", &history, &err));
    const char *line = strchr(history, '\n');
    assert_non_null(line);
    assert_null(strchr(line + 1, '\n'));
    free(history);
    kvd_h5_close(&f, false);
    unit_write_text(partial, "\x89HDF\r\n\x1a\n rubbish");
    assert_int_equal(kvd_h5_reopen(&f, path, &schema, &run, &err), -1);
    says_in("cannot resume: ");
    says_in("run without --resume");
    unlink(partial);
}

TEST(test_kill)
{
    enum { ROWS = 64, WIDTH = 4096 };
    unlink(path);
    for (int round = 0; round < 8; round++) {
        unlink(partial);
        int ends[2];
        assert_int_equal(pipe(ends), 0);
        const pid_t pid = fork();
        if (pid == 0) {
            kvd_h5 f;
            hid_t set;
            float row[WIDTH];
            const kvd_h5_spec s = {
                "/q", "Q.", "1", H5T_IEEE_F32LE, 2, {ROWS, WIDTH}, {"token", "dim"}};
            if (kvd_h5_create(&f, path, &schema, &run, &err) ||
                kvd_h5_reserve(&f, &s, &set, &err) ||
                kvd_h5_put_int(&f, "/", "rows_done", 0, &err) || kvd_h5_sync(&f, &err))
                _exit(1);
            if (write(ends[1], "x", 1) != 1)
                _exit(1);
            for (hsize_t i = 0;; i = (i + 1) % ROWS) {
                const hsize_t start[2] = {i, 0}, count[2] = {1, WIDTH};
                for (int j = 0; j < WIDTH; j++)
                    row[j] = (float)i;
                if (kvd_h5_write_slab(set, "/q", 2, start, count, H5T_IEEE_F32LE, row, &err) ||
                    kvd_h5_put_int(&f, "/", "rows_done", (int64_t)i + 1, &err) ||
                    kvd_h5_sync(&f, &err))
                    _exit(1);
            }
        }
        close(ends[1]);
        char c;
        assert_int_equal(read(ends[0], &c, 1), 1);
        close(ends[0]);
        usleep((useconds_t)(3000 * round));
        kill(pid, SIGKILL);
        int status;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status));
        kvd_h5 f;
        hsize_t dims[2];
        ok(kvd_h5_reopen(&f, path, &schema, &run, &err));
        assert_true(f.id > 0);
        ok(kvd_h5_shape(&f, "/q", 2, dims, &err));
        kvd_h5_close(&f, false);
    }
}

TEST_MAIN(make_folder, release_run)

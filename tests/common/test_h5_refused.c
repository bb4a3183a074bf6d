/* Tests that HDF5 files are refused if they are damaged, unfinished, or of an unknown or a newer
 * schema. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include "common/rng.h"
#include "h5_case.h"
#include "unit.h"

static void refused(void)
{
    kvd_h5 f;
    err.msg[0] = '\0';
    assert_int_equal(kvd_h5_open(&f, path, &schema, &err), -1);
    assert_true(f.id < 0);
    says_in(path);
}

/* A good file must not be called damaged if no file descriptor is free. */
TEST(test_too_many_open_files)
{
    struct rlimit before, low;
    kvd_h5 f;
    write_file();
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    for (rlim_t n = 3; n < 24; n++) {
        low = (struct rlimit){n, before.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
        err.msg[0] = '\0';
        const int status = kvd_h5_open(&f, path, &schema, &err);
        if (status == 0)
            kvd_h5_close(&f, false);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
        if (status && (strstr(err.msg, "damaged") || !strstr(err.msg, "Too many open files")))
            fail_msg("%d descriptors: %s", (int)n, err.msg);
        assert_true(n < 23 || status == 0);
    }
}

TEST(test_plain_refusals)
{
    kvd_h5 f;
    FAILS(kvd_h5_open(&f, "/nowhere/x.h5", &schema, &err),
          "cannot open '/nowhere/x.h5': No such file or directory");
    FAILS(kvd_h5_open(&f, "/tmp", &schema, &err), "'/tmp' is a folder, not an HDF5 file");
    FAILS(kvd_h5_open(&f, "/dev/null", &schema, &err), "'/dev/null' is not a regular file");
    unit_write(path, "", 0);
    refused();
    says("'%s' is empty");
    unit_write(path, "some text that is long enough to be read as a header", 50);
    refused();
    says("'%s' is not an HDF5 file");
}

TEST(test_foreign_and_newer)
{
    kvd_h5 f;
    const kvd_schema old = {"test", 1, "A test."};
    write_file();
    assert_int_equal(kvd_h5_open(&f, path, &other, &err), -1);
    says("'%s' holds kvdim/test, kvdim/other is wanted");
    assert_int_equal(kvd_h5_open(&f, path, &old, &err), -1);
    says("'%s' has version 2 of kvdim/test, this program knows versions up to 1");
    hid_t id = H5Fopen(path, H5F_ACC_RDWR, H5P_DEFAULT);
    hid_t a = H5Aopen(id, "complete", H5P_DEFAULT);
    const int64_t zero = 0;
    assert_true(H5Awrite(a, H5T_NATIVE_INT64, &zero) >= 0);
    H5Aclose(a);
    H5Fclose(id);
    refused();
    says("'%s' is incomplete: the program that wrote it did not finish");
    id = H5Fopen(path, H5F_ACC_RDWR, H5P_DEFAULT);
    assert_true(H5Adelete(id, "complete") >= 0);
    H5Fclose(id);
    refused();
    says("'%s' has no attribute '/complete'");
    id = H5Fopen(path, H5F_ACC_RDWR, H5P_DEFAULT);
    assert_true(H5Adelete(id, "schema") >= 0);
    H5Fclose(id);
    refused();
    says("'%s' is not a kvdim file: it has no text attribute 'schema'");
    char name[8];
    assert_int_equal(kvd_h5_peek_schema(path, name, sizeof name, &err), -1);
    kvd_run again = {0};
    ok(kvd_run_add_input(&again, path, &err));
    assert_string_equal(again.inputs[0].schema, "");
    kvd_run_release(&again);
}

/* HDF5 links to other files are refused, because they could make a program read any file that its
 * user can read. */
TEST(test_links_are_refused)
{
    write_file();
    hid_t id = H5Fopen(path, H5F_ACC_RDWR, H5P_DEFAULT);
    assert_true(H5Lcreate_external("/etc/passwd", "/x", id, "/qk/away", H5P_DEFAULT, H5P_DEFAULT) >=
                0);
    H5Fclose(id);
    refused();
    says("'%s' is damaged: 'qk/away' is a link to somewhere else");
    write_file();
    id = H5Fopen(path, H5F_ACC_RDWR, H5P_DEFAULT);
    const hsize_t n = 8;
    const hid_t space = H5Screate_simple(1, &n, NULL), made = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_external(made, "/etc/passwd", 0, 8);
    const hid_t set = H5Dcreate2(id, "/ext", H5T_STD_U8LE, space, H5P_DEFAULT, made, H5P_DEFAULT);
    assert_true(set >= 0);
    H5Dclose(set);
    H5Sclose(space);
    H5Pclose(made);
    H5Fclose(id);
    refused();
    says("'%s' is damaged: dataset 'ext' keeps its values in another file");
}

/* HDF5 reads 0 for values that are not in the file. */
TEST(test_missing_values)
{
    const hsize_t dims[3] = {A, B, C}, chunk[3] = {1, B, C};
    double x[A * B * C] = {0};
    for (int chunks = 0; chunks <= A; chunks++) {
        kvd_h5 f;
        write_file();
        const hid_t id = H5Fopen(path, H5F_ACC_RDWR, H5P_DEFAULT);
        const hid_t space = H5Screate_simple(3, dims, NULL), made = H5Pcreate(H5P_DATASET_CREATE);
        assert_true(H5Ldelete(id, "/qk/sigma", H5P_DEFAULT) >= 0);
        if (chunks)
            H5Pset_chunk(made, 3, chunk);
        const hid_t dataset =
            H5Dcreate2(id, "/qk/sigma", H5T_IEEE_F64LE, space, H5P_DEFAULT, made, H5P_DEFAULT);
        const hsize_t start[3] = {0}, count[3] = {(hsize_t)chunks, B, C};
        if (chunks)
            ok(kvd_h5_write_slab(dataset, "sigma", 3, start, count, H5T_NATIVE_DOUBLE, x, &err));
        H5Dclose(dataset);
        H5Pclose(made);
        H5Sclose(space);
        H5Fclose(id);
        ok(kvd_h5_open(&f, path, &schema, &err));
        const int status = kvd_h5_read(&f, "/qk/sigma", 3, dims, H5T_NATIVE_DOUBLE, x, &err);
        kvd_h5_close(&f, false);
        assert_int_equal(status, chunks == A ? 0 : -1);
        if (status)
            says(chunks == 0   ? "'%s' /qk/sigma stores 0 of its 1 blocks of values"
                 : chunks == 1 ? "'%s' /qk/sigma stores 1 of its 3 blocks of values"
                               : "'%s' /qk/sigma stores 2 of its 3 blocks of values");
    }
}

TEST(test_cut_short)
{
    write_file();
    size_t n;
    unsigned char *const data = unit_read(path, &n);
    for (size_t cut = 1; cut < n; cut += cut < 128 ? 9 : 997) {
        unit_write(path, data, cut);
        refused();
        says_in(cut < 8 ? "is not an HDF5 file" : "is cut short: it has ");
    }
}

TEST(test_damaged)
{
    unsigned char *data, *copy;
    write_file();
    size_t n;
    data = unit_read(path, &n);
    copy = unit_alloc(n);
    kvd_rng r;
    kvd_rng_seed(&r, 21, 0);
    int refusals = 0;
    for (int i = 0; i < 150; i++) {
        memcpy(copy, data, n);
        const int flips = 1 + (int)kvd_rng_below(&r, 4);
        for (int k = 0; k < flips; k++)
            copy[kvd_rng_below(&r, n)] = (unsigned char)kvd_rng_u64(&r);
        unit_write(path, copy, n);
        kvd_h5 f;
        if (kvd_h5_open(&f, path, &schema, &err)) {
            assert_true(err.msg[0] != '\0');
            refusals++;
            continue;
        }
        double x[A * B * C];
        const hsize_t dims[3] = {A, B, C};
        (void)kvd_h5_read(&f, "/qk/sigma", 3, dims, H5T_NATIVE_DOUBLE, x, &err);
        kvd_h5_close(&f, false);
    }
    assert_true(refusals > 0);
}

TEST(test_damaged_when_read)
{
    enum { N = 1 << 16 };
    const hsize_t dims[1] = {N};
    const kvd_h5_spec s = {"/noise", "Noise.", "1", H5T_IEEE_F64LE, 1, {N}, {"i"}};
    double *const x = unit_alloc(N * sizeof *x);
    kvd_h5 f;
    kvd_rng r;
    kvd_rng_seed(&r, 22, 0);
    for (size_t i = 0; i < N; i++)
        x[i] = kvd_rng_normal(&r);
    ok(kvd_h5_create(&f, path, &schema, &run, &err));
    ok(kvd_h5_write(&f, &s, H5T_NATIVE_DOUBLE, x, &err));
    ok(kvd_h5_finish(&f, &err));
    kvd_h5_close(&f, false);
    ok(kvd_h5_open(&f, path, &schema, &err));
    const int fd = open(path, O_RDWR);
    const off_t middle = lseek(fd, 0, SEEK_END) / 2;
    unsigned char byte;
    assert_int_equal(pread(fd, &byte, 1, middle), 1);
    byte ^= 0xff;
    assert_int_equal(pwrite(fd, &byte, 1, middle), 1);
    ok(close(fd));
    assert_int_equal(kvd_h5_read(&f, "/noise", 1, dims, H5T_NATIVE_DOUBLE, x, &err), -1);
    says_in("cannot read '");
    kvd_h5_close(&f, false);
}

static long faults_of_children(void)
{
    struct rusage u;
    ok(getrusage(RUSAGE_CHILDREN, &u));
    return u.ru_minflt;
}

TEST(test_read_once)
{
    char bad[80], why[sizeof err.msg] = "";
    kvd_h5 f;
    write_file();
    size_t n;
    unsigned char *const data = unit_read(path, &n);
    (void)snprintf(bad, sizeof bad, "%s/bad.h5", folder);
    memset(data + 96, 0xff, n - 96);
    unit_write(bad, data, n);
    sleep(3);
    for (int i = 0; i < 3; i++) {
        const long before = faults_of_children();
        ok(kvd_h5_open(&f, path, &schema, &err));
        kvd_h5_close(&f, false);
        assert_int_equal(faults_of_children() > before, i == 0);
        const long between = faults_of_children();
        assert_int_equal(kvd_h5_open(&f, bad, &schema, &err), -1);
        assert_int_equal(faults_of_children() > between, i == 0);
        assert_true(i == 0 || !strcmp(err.msg, why));
        strcpy(why, err.msg);
    }
    ok(utimes(path, NULL));
    const long before = faults_of_children();
    ok(kvd_h5_open(&f, path, &schema, &err));
    kvd_h5_close(&f, false);
    assert_true(faults_of_children() > before);
}

/* LARGE, MEDIUM, LITTLE: numbers of elements that HDF5 stores in many chunks, in one chunk and
 * without chunks */
enum { LARGE = 600000, MEDIUM = 9000, LITTLE = 30, N_ROWS = 40, LENGTH = 50, LONG_TEXT = 5000 };
typedef struct {
    double large[LARGE], medium[MEDIUM], little[LITTLE], number, theta;
    int64_t whole;
    char row[N_ROWS * LENGTH], text[LONG_TEXT], name[64];
} contents;

static hid_t text_type(void)
{
    const hid_t t = H5Tcopy(H5T_C_S1);
    assert_true(t >= 0 && H5Tset_size(t, LENGTH) >= 0);
    return t;
}

static void write_contents(contents *c)
{
    kvd_h5 f;
    kvd_rng r;
    char name[16];
    const hid_t text = text_type();
    const kvd_h5_spec large = {"/g/large", "Chunks.", "1", H5T_IEEE_F64LE, 1, {LARGE}, {"x"}},
                      medium = {"/g/medium", "One chunk.",    "1",       H5T_IEEE_F64LE,
                                2,           {2, MEDIUM / 2}, {"x", "y"}},
                      little = {"/little", "No chunk.", "1", H5T_IEEE_F64LE, 1, {LITTLE}, {"x"}},
                      number = {"/number", "A number.", "1", H5T_IEEE_F64LE, 0, {0}, {0}},
                      row = {"/rows/text", "Texts.", "1", text, 1, {N_ROWS}, {"row"}};
    kvd_rng_seed(&r, 1, 0);
    for (int i = 0; i < LARGE; i++)
        /* This large dataset has few distinct values, so HDF5 compresses it to few bytes. Most bits
         * that a test flips at random then belong to the other datasets. */
        c->large[i] = i / 200000 + 1;
    for (int i = 0; i < MEDIUM; i++)
        c->medium[i] = kvd_rng_normal(&r);
    for (int i = 0; i < LITTLE; i++)
        c->little[i] = kvd_rng_normal(&r);
    c->number = 3;
    c->theta = 1e4;
    c->whole = 6;
    for (int i = 0; i < N_ROWS; i++)
        (void)snprintf(c->row + (size_t)i * LENGTH, LENGTH, "text %d", i);
    memset(c->text, 'x', LONG_TEXT - 1);
    (void)snprintf(c->name, sizeof c->name, "some name");
    ok(kvd_h5_create(&f, path, &schema, &run, &err));
    ok(kvd_h5_write(&f, &large, H5T_NATIVE_DOUBLE, c->large, &err) ||
       kvd_h5_write(&f, &medium, H5T_NATIVE_DOUBLE, c->medium, &err) ||
       kvd_h5_write(&f, &little, H5T_NATIVE_DOUBLE, c->little, &err) ||
       kvd_h5_write(&f, &number, H5T_NATIVE_DOUBLE, &c->number, &err) ||
       kvd_h5_write(&f, &row, text, c->row, &err));
    /* Writes more attributes than HDF5 keeps in an object header. */
    for (int i = 0; i < 10; i++) {
        (void)snprintf(name, sizeof name, "n%d", i);
        ok(kvd_h5_put_int(&f, "/model", name, i, &err));
    }
    ok(kvd_h5_put_text(&f, "/model", "text", c->text, &err) ||
       kvd_h5_put_text(&f, "/model", "name", c->name, &err) ||
       kvd_h5_put_int(&f, "/", "whole", c->whole, &err) ||
       kvd_h5_put_double(&f, "/", "theta", c->theta, &err));
    ok(kvd_h5_finish(&f, &err));
    H5Tclose(text);
}

static int get_text(kvd_h5 *f, const char *name, char *to, size_t size)
{
    char *text = NULL;
    if (kvd_h5_get_text(f, "/model", name, &text, &err))
        return -1;
    (void)snprintf(to, size, "%s", text);
    free(text);
    return 0;
}

static int read_contents(contents *c)
{
    const hsize_t large = LARGE, medium[2] = {2, MEDIUM / 2}, little = LITTLE, row = N_ROWS;
    const hid_t text = text_type();
    kvd_h5 f;
    memset(c, 0, sizeof *c);
    int rc = kvd_h5_open(&f, path, &schema, &err);
    rc = rc || kvd_h5_read(&f, "/g/large", 1, &large, H5T_NATIVE_DOUBLE, c->large, &err) ||
         kvd_h5_read(&f, "/g/medium", 2, medium, H5T_NATIVE_DOUBLE, c->medium, &err) ||
         kvd_h5_read(&f, "/little", 1, &little, H5T_NATIVE_DOUBLE, c->little, &err) ||
         kvd_h5_read(&f, "/number", 0, NULL, H5T_NATIVE_DOUBLE, &c->number, &err) ||
         kvd_h5_read(&f, "/rows/text", 1, &row, text, c->row, &err) ||
         kvd_h5_get_int(&f, "/", "whole", &c->whole, &err) ||
         kvd_h5_get_double(&f, "/", "theta", &c->theta, &err) ||
         get_text(&f, "text", c->text, sizeof c->text) ||
         get_text(&f, "name", c->name, sizeof c->name);
    kvd_h5_close(&f, false);
    H5Tclose(text);
    return rc ? -1 : 0;
}

TEST(test_flipped_bits)
{
    enum { FLIPS = 200 };
    static contents written, found;
    int refused_ones = 0;
    kvd_rng r;
    write_contents(&written);
    ok(read_contents(&found));
    assert_memory_equal(&written, &found, sizeof written);
    size_t n;
    unsigned char *const data = unit_read(path, &n);
    kvd_rng_seed(&r, 2, 0);
    for (int i = 0; i < FLIPS; i++) {
        /* bit to flip; in every second trial a bit of a nonzero byte, as zero bytes are
         * mostly unused */
        size_t bit;
        do
            bit = (size_t)(kvd_rng_uniform(&r) * 8 * (double)n);
        while (i % 2 && !data[bit / 8]);
        data[bit / 8] = (unsigned char)(data[bit / 8] ^ 1 << bit % 8);
        unit_write(path, data, n);
        if (read_contents(&found))
            refused_ones++;
        else if (memcmp(&written, &found, sizeof written))
            fail_msg("bit %zu of byte %zu of %zu changes a value", bit % 8, bit / 8, n);
        data[bit / 8] = (unsigned char)(data[bit / 8] ^ 1 << bit % 8);
    }
    assert_true(refused_ones > FLIPS / 2);
}

TEST_MAIN(make_folder, release_run)

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/memory.h"
#include "temp_folder.h"
#include "unit.h"

static const double gib = 1073741824.;

static void put(const char *name, const char *text)
{
    char path[200];
    (void)snprintf(path, sizeof path, "%s/%s", temp_folder(), name);
    for (char *c = path + strlen(temp_folder()) + 1; *c; c++)
        if (*c == '/') {
            *c = '\0';
            (void)mkdir(path, 0700);
            *c = '/';
        }
    unit_write_text(path, text);
}

static double left_in(const char *list, const char *root)
{
    char file[200], folder[200];
    (void)snprintf(file, sizeof file, "%s/%s", temp_folder(), list);
    (void)snprintf(folder, sizeof folder, "%s/%s", temp_folder(), root);
    return kvd_memory_cgroup_left(file, folder);
}

TEST(test_groups_of_version_2)
{
    put("list2", "0::/user/job\n");
    put("two/user/job/memory.max", "max\n");
    put("two/user/job/memory.current", "5000\n");
    assert_true(isinf(left_in("list2", "two")));
    put("two/user/memory.max", "100000\n");
    put("two/user/memory.current", "60000\n");
    assert_true(left_in("list2", "two") == 40000);
    put("two/user/memory.stat", "anon 30000\nfile 30000\nactive_file 10000\ninactive_file 20000\n");
    assert_true(left_in("list2", "two") == 70000);
    put("two/user/job/memory.max", "15000\n");
    assert_true(left_in("list2", "two") == 10000);
    assert_true(isinf(left_in("no-list", "two")));
}

TEST(test_groups_of_version_1)
{
    put("list1", "9:name=systemd:/\n4:cpu,memory:/docker/abc\n0::/\n");
    put("one/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put("one/memory/memory.usage_in_bytes", "123456789\n");
    assert_true(isinf(left_in("list1", "one")));
    /* Inside a container, the folder of cgroup /docker/abc does not exist, so the root group's
     * limit applies. */
    put("one/memory/memory.limit_in_bytes", "100000\n");
    put("one/memory/memory.usage_in_bytes", "90000\n");
    put("one/memory/memory.stat",
        "inactive_file 1\ntotal_inactive_file 20000\ntotal_active_file 0\n");
    assert_true(left_in("list1", "one") == 30000);
    put("one/memory/docker/abc/memory.limit_in_bytes", "7000\n");
    put("one/memory/docker/abc/memory.usage_in_bytes", "2000\n");
    assert_true(left_in("list1", "one") == 5000);
}

TEST(test_address_space)
{
#ifdef __SANITIZE_ADDRESS__
    /* Skips the test, because a sanitizer reserves more address space than the limit allows. */
    skip();
#endif
    const kvd_memory_left before = kvd_memory_available();
    assert_true(before.bytes > 0 && isfinite(before.bytes));
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        const struct rlimit limit = {(rlim_t)1 << 32, (rlim_t)1 << 32};
        (void)setrlimit(RLIMIT_AS, &limit);
        const kvd_memory_left left = kvd_memory_available();
        _exit(left.bytes < 0.9 * 4 * gib && left.bytes < before.bytes + 1 &&
                      (left.bytes >= before.bytes || strstr(left.limit, "ulimit -v"))
                  ? 0
                  : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST(test_check)
{
    kvd_err err = {""};
    kvd_memory_part part[] = {{"weights", 0}, {"cache", 1000}};
    OK(kvd_memory_check(part, 2, "lower --pages", &err));
    part[0].bytes = 1e6 * gib;
    part[1].bytes = 0.5 * gib;
    assert_int_equal(kvd_memory_check(part, 2, "lower --pages", &err), -1);
    assert_non_null(
        strstr(err.msg, "1000000.50 GiB of memory are needed (weights 1000000.00, cache 0.50), "));
    assert_non_null(strstr(err.msg, " GiB are available ("));
    assert_non_null(strstr(err.msg, "): lower --pages"));
}

TEST_MAIN(NULL, NULL)

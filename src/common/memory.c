#include "common/memory.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static const double share = 0.9, gib = 1073741824.;

/* Finds the first line of a file that begins with `key`, and returns the number after `key`.
 * Returns NaN if there is none. */
static double field(const char *path, const char *key)
{
    const size_t n = strlen(key);
    double value = NAN;
    char line[256];
    FILE *const f = fopen(path, "r");
    while (f && isnan(value) && fgets(line, sizeof line, f))
        if (!strncmp(line, key, n) && sscanf(line + n, "%lf", &value) != 1)
            value = NAN;
    if (f)
        fclose(f);
    return value;
}

static double machine_left(void)
{
    const double kilobytes = field("/proc/meminfo", "MemAvailable:");
    return isnan(kilobytes) ? (double)sysconf(_SC_AVPHYS_PAGES) * (double)sysconf(_SC_PAGESIZE)
                            : kilobytes * 1024;
}

static double address_space_left(void)
{
    struct rlimit limit;
    const double pages = field("/proc/self/statm", "");
    if (getrlimit(RLIMIT_AS, &limit) || limit.rlim_cur == RLIM_INFINITY || isnan(pages))
        return INFINITY;
    return (double)limit.rlim_cur - pages * (double)sysconf(_SC_PAGESIZE);
}

bool kvd_memory_was_short(void)
{
    static const double close_to = 32 << 20;
    struct rlimit limit;
    const double kilobytes = field("/proc/self/status", "VmPeak:");
    return !getrlimit(RLIMIT_AS, &limit) && limit.rlim_cur != RLIM_INFINITY && !isnan(kilobytes) &&
           kilobytes * 1024 + close_to >= (double)limit.rlim_cur;
}

/* files that describe a memory control group (cgroup), in versions 1 and 2 */
static const struct {
    const char *folder, *limit, *usage, *inactive, *active;
} version[2] = {{"/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                 "total_inactive_file ", "total_active_file "},
                {"", "memory.max", "memory.current", "inactive_file ", "active_file "}};

static double group_field(const char *folder, const char *file, const char *key)
{
    char *path;
    if (asprintf(&path, "%s/%s", folder, file) < 0)
        return NAN;
    const double x = field(path, key);
    free(path);
    return x;
}

/* Returns how many more bytes a memory control group allows, or infinity if it has no limit. */
static double group_left(const char *folder, int v)
{
    const double limit = group_field(folder, version[v].limit, ""),
                 used = group_field(folder, version[v].usage, ""),
                 inactive = group_field(folder, "memory.stat", version[v].inactive),
                 active = group_field(folder, "memory.stat", version[v].active);
    if (isnan(limit) || limit > 1e18 || isnan(used))
        return INFINITY;
    const double cached = (isnan(inactive) ? 0 : inactive) + (isnan(active) ? 0 : active);
    return limit - fmax(used - cached, 0);
}

/* Returns how many more bytes a memory control group and all its parents allow. */
static double groups_left(const char *root, const char *path, int v)
{
    char *folder;
    double least = INFINITY;
    if (asprintf(&folder, "%s%s%s", root, version[v].folder, path) < 0)
        return least;
    const size_t top = strlen(root) + strlen(version[v].folder);
    for (;;) {
        least = fmin(least, group_left(folder, v));
        char *const slash = strrchr(folder, '/');
        if (strlen(folder) <= top || !slash)
            break;
        *slash = '\0';
    }
    free(folder);
    return least;
}

double kvd_memory_cgroup_left(const char *list, const char *root)
{
    char line[4096];
    double least = INFINITY;
    FILE *const f = fopen(list, "r");
    /* Parses lines ID:CONTROLLERS:PATH of /proc/self/cgroup. CONTROLLERS is empty in version 2. */
    while (f && fgets(line, sizeof line, f)) {
        char *const controllers = strchr(line, ':');
        char *const path = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!path)
            continue;
        line[strcspn(line, "\n")] = '\0';
        *path = '\0';
        const bool unified = !controllers[1];
        if (unified || strstr(controllers + 1, "memory"))
            least = fmin(least, groups_left(root, path + 1, unified));
    }
    if (f)
        fclose(f);
    return least;
}

kvd_memory_left kvd_memory_available(void)
{
    const kvd_memory_left all[] = {{machine_left(), "free memory of the machine"},
                                   {address_space_left(), "limit on address space, ulimit -v"},
                                   {kvd_memory_cgroup_left("/proc/self/cgroup", "/sys/fs/cgroup"),
                                    "memory limit of the control group"}};
    kvd_memory_left least = all[0];
    for (size_t i = 1; i < sizeof all / sizeof *all; i++)
        if (all[i].bytes < least.bytes)
            least = all[i];
    least.bytes = share * fmax(least.bytes, 0);
    return least;
}

int kvd_memory_check(const kvd_memory_part *part, size_t n, const char *advice, kvd_err *err)
{
    const kvd_memory_left left = kvd_memory_available();
    char parts[256] = "";
    double needed = 0;
    for (size_t i = 0; i < n; i++) {
        const size_t used = strlen(parts);
        needed += part[i].bytes;
        snprintf(parts + used, sizeof parts - used, "%s%s %.2f", i ? ", " : "", part[i].what,
                 part[i].bytes / gib);
    }
    return needed <= left.bytes
               ? 0
               : kvd_fail(err,
                          "%.2f GiB of memory are needed (%s), %.2f GiB are available (%s): %s",
                          needed / gib, parts, left.bytes / gib, left.limit, advice);
}

struct kvd_pool_block {
    struct kvd_pool_block *next;
    max_align_t data[];
};

void *kvd_pool_new(kvd_pool *p, size_t bytes)
{
    struct kvd_pool_block *const b = calloc(1, sizeof *b + bytes);
    p->bytes += bytes;
    p->failed = p->failed || !b;
    if (!b)
        return NULL;
    b->next = p->first;
    p->first = b;
    return b->data;
}

int kvd_pool_check(const kvd_pool *p, const char *what, kvd_err *err)
{
    return p->failed ? kvd_no_memory(err, what, p->bytes) : 0;
}

void kvd_pool_free(kvd_pool *p)
{
    for (struct kvd_pool_block *b = p->first, *next; b; b = next) {
        next = b->next;
        free(b);
    }
    *p = (kvd_pool){0};
}

void *kvd_pool_open(size_t bytes)
{
    kvd_pool p = {0};
    kvd_pool *const self = kvd_pool_new(&p, bytes);
    if (self)
        *self = p;
    return self;
}

void kvd_pool_close(void *self)
{
    kvd_pool p = *(kvd_pool *)self;
    kvd_pool_free(&p);
}

int kvd_pool_give(void *opened, bool failed, void **self)
{
    if (failed)
        kvd_pool_close(opened);
    else
        *self = opened;
    return kvd_status(failed);
}

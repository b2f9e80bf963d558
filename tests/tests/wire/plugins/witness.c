/* A plugin that writes down how it is called: two small disks in memory, `one` and `two`.

   Compiled with -DV=1 or 2 (the version of the interface), -DMODEL=N (the thread model, 3), -DPRESERVED=0|1 (errno counts),
   -DLENGTH=older|newer (how long the table says that it is).

   Parameters: log=FILE, size=N, slow=MILLISECONDS (each request), model=N (what thread_model says), say-NAME=N (what the callback
   NAME answers), fail-NAME=ERRNO:set|errno|none|said (how it fails), crash=OFFSET (of a read), leave=OFFSET:0|1 (of a read: ends the
   connection), asks=true (asks the host's functions), stop=OFFSET (of a read: ends the server), meet=OFFSET (of a read: it waits for another one there). */

#define _GNU_SOURCE
#define NBDKIT_API_VERSION V
#include <nbdkit-plugin.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/socket.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifndef MODEL
#define MODEL 3
#endif
#ifndef PRESERVED
#define PRESERVED 1
#endif
#define THREAD_MODEL MODEL
#define MOST 64

/* Not in every nbdkit. */
extern void nbdkit_disconnect (int force) __attribute__ ((weak));

int witness_debug_level = 0;

static int log_fd = -1;
static char early[4096];
static size_t size = 1 << 20;
static int slow, model = MODEL, asks;
static long long crash = -1, leave_at = -1, stop = -1, meet = -1;
static pthread_barrier_t both;
static int leave_how;
static char *disks[2];
static struct { char name[32]; char value[64]; } says[MOST], fails[MOST];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int all, most_all, most_handle, opened, most_opened;

struct handle { char *disk; int active; };

static void
note (const char *format, ...)
{
  char line[512];
  va_list args;
  int n;

  va_start (args, format);
  n = vsnprintf (line, sizeof line - 1, format, args);
  va_end (args);
  line[n++] = '\n';
  if (log_fd >= 0) {
    if (write (log_fd, line, n) != n)
      abort ();
  }
  else
    strncat (early, line, n);
}

static void
set (void *table, const char *name, const char *value)
{
  struct { char name[32]; char value[64]; } *t = table;
  int i;

  for (i = 0; i < MOST && t[i].name[0]; i++)
    ;
  snprintf (t[i].name, sizeof t[i].name, "%s", name);
  snprintf (t[i].value, sizeof t[i].value, "%s", value);
}

/* What a callback says: what it was told to say, or this. */
static int
say (const char *name, int otherwise)
{
  int i;

  note ("%s", name);
  for (i = 0; i < MOST; i++)
    if (strcmp (says[i].name, name) == 0)
      return atoi (says[i].value);
  return otherwise;
}

/* Fails, if it was told to. */
static int
fail (const char *name)
{
  int i, err;

  errno = 0;
  for (i = 0; i < MOST; i++)
    if (strcmp (fails[i].name, name) == 0) {
      char *how = strchr (fails[i].value, ':');
      err = atoi (fails[i].value);
      if (strcmp (how, ":set") == 0) {
        nbdkit_error ("%s fails, as it was told to", name);
        nbdkit_set_error (err);
      }
      else if (strcmp (how, ":errno") == 0) {
        errno = err;
        nbdkit_error ("%s: %m", name);
      }
      else if (strcmp (how, ":said") == 0)
        nbdkit_error ("%s fails without a number", name);
      return -1;
    }
  return 0;
}

static void
enter (struct handle *h)
{
  pthread_mutex_lock (&lock);
  if (++all > most_all)
    most_all = all;
  if (++h->active > most_handle)
    most_handle = h->active;
  pthread_mutex_unlock (&lock);
  if (slow) {
    struct timespec time = { slow / 1000, slow % 1000 * 1000000L };
    nanosleep (&time, NULL);
  }
}

static void
leave (struct handle *h)
{
  pthread_mutex_lock (&lock);
  all--;
  h->active--;
  pthread_mutex_unlock (&lock);
}

static void w_load (void) { note ("load"); }

static void
w_unload (void)
{
  note ("unload");
  note ("most all=%d handle=%d opened=%d", most_all, most_handle, most_opened);
}

static void w_dump (void) { printf ("witness_says=hello\n"); }
static int w_ready (void) { note ("get_ready"); return fail ("get_ready"); }
static int w_fork (void) { note ("after_fork"); return fail ("after_fork"); }
static void w_cleanup (void) { note ("cleanup"); }
static int w_model (void) { note ("thread_model"); return model; }

static int
w_config (const char *key, const char *value)
{
  if (strcmp (key, "log") == 0) {
    log_fd = open (value, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (log_fd == -1) {
      nbdkit_error ("%s: %m", value);
      return -1;
    }
    if (write (log_fd, early, strlen (early)) == -1)
      return -1;
    return 0;
  }
  note ("config %s", key);
  if (strcmp (key, "size") == 0) {
    int64_t n = nbdkit_parse_size (value);
    if (n == -1)
      return -1;
    size = n;
  }
  else if (strcmp (key, "slow") == 0)
    return nbdkit_parse_int ("slow", value, &slow);
  else if (strcmp (key, "asks") == 0)
    asks = nbdkit_parse_bool (value);
  else if (strcmp (key, "model") == 0)
    return nbdkit_parse_int ("model", value, &model);
  else if (strncmp (key, "say-", 4) == 0)
    set (says, key + 4, value);
  else if (strncmp (key, "fail-", 5) == 0)
    set (fails, key + 5, value);
  else if (strcmp (key, "crash") == 0)
    crash = atoll (value);
  else if (strcmp (key, "stop") == 0)
    stop = atoll (value);
  else if (strcmp (key, "meet") == 0) {
    meet = atoll (value);
    pthread_barrier_init (&both, NULL, 2);
  }
  else if (strcmp (key, "leave") == 0) {
    leave_at = atoll (value);
    leave_how = atoi (strchr (value, ':') + 1);
  }
  else {
    nbdkit_error ("unknown parameter '%s'", key);
    return -1;
  }
  return 0;
}

/* What the host's functions answer. */
static void
ask_host (void)
{
  static const char *texts[] = { "0", "1", "-1", "+7", "010", "0x1f", " 12", "12 ", "", "x", "1x", "127", "128", "-129", "255", "256",
    "65536", "4294967295", "4294967296", "18446744073709551615", "18446744073709551616", "1K", "2s", "3m", "8E", "7E", "1KiB",
    "1.5", "true", "OFF", "y", "No", "maybe" };
  size_t i;

  for (i = 0; i < sizeof texts / sizeof texts[0]; i++) {
    const char *t = texts[i];
    int n = 5; int8_t i8 = 5; int16_t i16 = 5; int32_t i32 = 5; int64_t i64 = 5;
    unsigned u = 5; uint8_t u8 = 5; uint16_t u16 = 5; uint32_t u32 = 5; uint64_t u64 = 5;

    note ("host '%s' %lld %d %d", t, (long long) nbdkit_parse_size (t), nbdkit_parse_bool (t), nbdkit_parse_int ("n", t, &n));
    note ("host '%s' %d %d %d %d", t, nbdkit_parse_int8_t ("n", t, &i8), nbdkit_parse_int16_t ("n", t, &i16),
          nbdkit_parse_int32_t ("n", t, &i32), nbdkit_parse_int64_t ("n", t, &i64));
    note ("host '%s' %d %d %d %d %d", t, nbdkit_parse_unsigned ("n", t, &u), nbdkit_parse_uint8_t ("n", t, &u8),
          nbdkit_parse_uint16_t ("n", t, &u16), nbdkit_parse_uint32_t ("n", t, &u32), nbdkit_parse_uint64_t ("n", t, &u64));
    note ("host '%s' %d %d %d %d %lld %u %u %u %u %llu", t, n, i8, i16, i32, (long long) i64, u, u8, u16, u32, (unsigned long long) u64);
  }
  {
    char *path = nbdkit_absolute_path ("a/../b"), *real = nbdkit_realpath ("/etc/../etc"), *no = nbdkit_realpath ("/no/such");
    char *given = NULL, *from = NULL, *none = NULL;
    int r1 = nbdkit_read_password ("secret", &given), r2 = nbdkit_read_password ("+password", &from);
    int r3 = nbdkit_read_password ("+/no/such", &none);

    note ("host %s %s %d", strrchr (path, '/'), real, no == NULL);
    note ("host %d %s %d %s %d %d", r1, given, r2, from, r3, none == NULL);
    note ("host %s %s", nbdkit_strdup_intern ("kept"), nbdkit_strndup_intern ("keeper", 4));
    free (path); free (real); free (given); free (from);
  }
}

static int
w_complete (void)
{
  note ("config_complete level=%d", witness_debug_level);
  disks[0] = calloc (size, 1);
  disks[1] = malloc (size);
  memset (disks[1], 'x', size);
  if (asks)
    ask_host ();
  return fail ("config_complete");
}

static int
w_preconnect (int readonly)
{
  note ("preconnect %d", readonly);
  return fail ("preconnect");
}

#if V == 2
static int
w_list (int readonly, int is_tls, struct nbdkit_exports *exports)
{
  note ("list_exports");
  if (fail ("list_exports") == -1)
    return -1;
  nbdkit_add_export (exports, "one", "the first");
  return nbdkit_add_export (exports, "two", "the second");
}

static const char *
w_default (int readonly, int is_tls)
{
  note ("default_export");
  return fail ("default_export") == -1 ? NULL : "one";
}
#endif

static const char *
w_description (void *handle)
{
  note ("export_description");
  return nbdkit_printf_intern ("%s of %d", ((struct handle *)handle)->disk == disks[0] ? "one" : "two", 2);
}

static void *
w_open (int readonly)
{
  const char *name = nbdkit_export_name ();
  struct handle *h;

  note ("open %d %s", readonly, name);
  if (asks) {
    struct sockaddr_storage address = { 0 };
    socklen_t length = sizeof address;
    int r = nbdkit_peer_name ((struct sockaddr *) &address, &length);
    long long pid = nbdkit_peer_pid ();

    note ("peer %d %d %d %lld %lld %d", r, address.ss_family, pid > 0, (long long) nbdkit_peer_uid (), (long long) nbdkit_peer_gid (),
          nbdkit_is_tls ());
    note ("peer %d", nbdkit_nanosleep (0, 1000));
  }
  if (fail ("open") == -1)
    return NULL;
  if (*name && strcmp (name, "one") != 0 && strcmp (name, "two") != 0) {
    nbdkit_error ("there is no disk '%s'", name);
    return NULL;
  }
  h = calloc (1, sizeof *h);
  h->disk = disks[strcmp (name, "two") == 0];
  pthread_mutex_lock (&lock);
  if (++opened > most_opened)
    most_opened = opened;
  pthread_mutex_unlock (&lock);
  return h;
}

static void
w_close (void *handle)
{
  note ("close");
  pthread_mutex_lock (&lock);
  opened--;
  pthread_mutex_unlock (&lock);
  free (handle);
}

static int64_t w_size (void *handle) { return say ("get_size", size); }

static int
w_block (void *handle, uint32_t *minimum, uint32_t *preferred, uint32_t *maximum)
{
  note ("block_size");
  *minimum = say ("minimum", 1);
  *preferred = say ("preferred", 4096);
  *maximum = say ("maximum", 1 << 20);
  return 0;
}

static int w_can_write (void *h) { return say ("can_write", 1); }
static int w_can_flush (void *h) { return say ("can_flush", 1); }
static int w_rotational (void *h) { return say ("is_rotational", 1); }
static int w_can_trim (void *h) { return say ("can_trim", 1); }
static int w_can_zero (void *h) { return say ("can_zero", 1); }
static int w_can_fast (void *h) { return say ("can_fast_zero", 1); }
static int w_can_extents (void *h) { return say ("can_extents", 1); }
static int w_can_fua (void *h) { return say ("can_fua", 2); }
static int w_can_multi (void *h) { return say ("can_multi_conn", 1); }
static int w_can_cache (void *h) { return say ("can_cache", 2); }

static int
do_read (struct handle *h, void *buf, uint32_t count, uint64_t offset, uint32_t flags)
{
  int r;

  note ("pread %u %llu %u", count, (unsigned long long) offset, flags);
  enter (h);
  r = fail ("pread");
  if (crash >= 0 && offset == (uint64_t) crash)
    *(volatile int *) NULL = 1;
  if (leave_at >= 0 && offset == (uint64_t) leave_at)
    if (nbdkit_disconnect)
      nbdkit_disconnect (leave_how);
  if (meet >= 0 && offset == (uint64_t) meet)
    pthread_barrier_wait (&both);
  if (stop >= 0 && offset == (uint64_t) stop)
    nbdkit_shutdown ();
  if (r == 0)
    memcpy (buf, h->disk + offset, count);
  leave (h);
  return r;
}

static int
do_write (struct handle *h, const void *buf, uint32_t count, uint64_t offset, uint32_t flags)
{
  int r;

  note ("pwrite %u %llu %u", count, (unsigned long long) offset, flags);
  enter (h);
  r = fail ("pwrite");
  if (r == 0)
    memcpy (h->disk + offset, buf, count);
  leave (h);
  return r;
}

static int
do_flush (struct handle *h, uint32_t flags)
{
  note ("flush %u", flags);
  return fail ("flush");
}

static int
do_trim (struct handle *h, uint32_t count, uint64_t offset, uint32_t flags)
{
  int r;

  note ("trim %u %llu %u", count, (unsigned long long) offset, flags);
  r = fail ("trim");
  if (r == 0)
    memset (h->disk + offset, 0, count);
  return r;
}

static int
do_zero (struct handle *h, uint32_t count, uint64_t offset, uint32_t flags)
{
  int r;

  note ("zero %u %llu %u", count, (unsigned long long) offset, flags);
  r = fail ("zero");
  if (r == 0)
    memset (h->disk + offset, 0, count);
  return r;
}

#if V == 1
static int w_pread (void *h, void *buf, uint32_t count, uint64_t offset) { return do_read (h, buf, count, offset, 0); }
static int w_pwrite (void *h, const void *buf, uint32_t count, uint64_t offset) { return do_write (h, buf, count, offset, 0); }
static int w_flush (void *h) { return do_flush (h, 0); }
static int w_trim (void *h, uint32_t count, uint64_t offset) { return do_trim (h, count, offset, 0); }
static int w_zero (void *h, uint32_t count, uint64_t offset, int may_trim) { return do_zero (h, count, offset, may_trim); }
#else
static int w_pread (void *h, void *buf, uint32_t count, uint64_t offset, uint32_t flags) { return do_read (h, buf, count, offset, flags); }
static int w_pwrite (void *h, const void *buf, uint32_t count, uint64_t offset, uint32_t flags) { return do_write (h, buf, count, offset, flags); }
static int w_flush (void *h, uint32_t flags) { return do_flush (h, flags); }
static int w_trim (void *h, uint32_t count, uint64_t offset, uint32_t flags) { return do_trim (h, count, offset, flags); }
static int w_zero (void *h, uint32_t count, uint64_t offset, uint32_t flags) { return do_zero (h, count, offset, flags); }
#endif

#if V == 2
/* Each 4096 bytes that hold nothing but zeroes are a hole; with say-extents=0 no extent is said. */
static int
w_extents (void *handle, uint32_t count, uint64_t offset, uint32_t flags, struct nbdkit_extents *extents)
{
  struct handle *h = handle;
  uint64_t at = offset / 4096 * 4096, i;

  note ("extents %u %llu %u", count, (unsigned long long) offset, flags);
  if (fail ("extents") == -1)
    return -1;
  if (say ("told", 1) == 0)
    return 0;
  for (; at < offset + count; at += 4096) {
    uint32_t type = NBDKIT_EXTENT_HOLE | NBDKIT_EXTENT_ZERO;
    for (i = at; i < at + 4096 && i < size; i++)
      if (h->disk[i])
        type = 0;
    if (nbdkit_add_extent (extents, at, 4096, type) == -1)
      return -1;
  }
  return 0;
}

static int
w_cache (void *handle, uint32_t count, uint64_t offset, uint32_t flags)
{
  note ("cache %u %llu %u", count, (unsigned long long) offset, flags);
  return fail ("cache");
}
#endif

static struct nbdkit_plugin plugin = {
  .name = "witness",
  .longname = "a witness",
  .version = "7.8",
  .description = "It writes down how it is called.",
  .config_help = "log=FILE  where to",
  .magic_config_key = "size",
  .errno_is_preserved = PRESERVED,
  .load = w_load, .unload = w_unload, .dump_plugin = w_dump,
  .config = w_config, .config_complete = w_complete,
  .thread_model = w_model, .get_ready = w_ready, .after_fork = w_fork, .cleanup = w_cleanup,
  .preconnect = w_preconnect, .open = w_open, .close = w_close,
  .export_description = w_description, .get_size = w_size, .block_size = w_block,
  .can_write = w_can_write, .can_flush = w_can_flush, .is_rotational = w_rotational, .can_trim = w_can_trim,
  .can_zero = w_can_zero, .can_fast_zero = w_can_fast, .can_fua = w_can_fua, .can_multi_conn = w_can_multi,
  .pread = w_pread, .pwrite = w_pwrite, .flush = w_flush, .trim = w_trim, .zero = w_zero,
#if V == 2
  .list_exports = w_list, .default_export = w_default,
  .can_extents = w_can_extents, .can_cache = w_can_cache, .extents = w_extents, .cache = w_cache,
#endif
};

/* What NBDKIT_REGISTER_PLUGIN does, with a table as long as one wants. */
static struct { struct nbdkit_plugin plugin; void *more[8]; } table;

struct nbdkit_plugin *
plugin_init (void)
{
  table.plugin = plugin;
  memset (table.more, 8, sizeof table.more);
  table.plugin._struct_size = sizeof plugin;
#ifdef OLDER
  table.plugin._struct_size = offsetof (struct nbdkit_plugin, magic_config_key);
  memset ((char *) &table + table.plugin._struct_size, 8, sizeof table - table.plugin._struct_size);
#endif
#ifdef NEWER
  table.plugin._struct_size = sizeof table;
#endif
  table.plugin._api_version = V;
  table.plugin._thread_model = THREAD_MODEL;
  return &table.plugin;
}

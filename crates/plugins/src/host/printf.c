/* The functions of the host that take a format and as many arguments as their caller likes, or a va_list. Rust gets the text.
   errno is what it was, because callers print it more than once, and return it. */

#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

extern void diskferry_plugin_said (const char *text);
extern void diskferry_plugin_traced (const char *text);
extern int diskferry_plugin_is_traced (void);
extern const char *diskferry_plugin_keep (char *text);

void
nbdkit_verror (const char *format, va_list args)
{
  int err = errno;
  char *text;

  if (vasprintf (&text, format, args) >= 0) {
    diskferry_plugin_said (text);
    free (text);
  }
  errno = err;
}

void
nbdkit_error (const char *format, ...)
{
  va_list args;

  va_start (args, format);
  nbdkit_verror (format, args);
  va_end (args);
}

void
nbdkit_vdebug (const char *format, va_list args)
{
  int err = errno;
  char *text;

  if (diskferry_plugin_is_traced () && vasprintf (&text, format, args) >= 0) {
    diskferry_plugin_traced (text);
    free (text);
  }
  errno = err;
}

void
nbdkit_debug (const char *format, ...)
{
  va_list args;

  va_start (args, format);
  nbdkit_vdebug (format, args);
  va_end (args);
}

const char *
nbdkit_vprintf_intern (const char *format, va_list args)
{
  char *text;

  if (vasprintf (&text, format, args) < 0) {
    nbdkit_error ("vasprintf: %m");
    return NULL;
  }
  return diskferry_plugin_keep (text);
}

const char *
nbdkit_printf_intern (const char *format, ...)
{
  const char *text;
  va_list args;

  va_start (args, format);
  text = nbdkit_vprintf_intern (format, args);
  va_end (args);
  return text;
}

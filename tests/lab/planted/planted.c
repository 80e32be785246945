// SPDX-License-Identifier: GPL-2.0
/* Defects for a debug kernel to find: a module of one's own, built outside of the kernel's source.
 * Without a parameter it does nothing, and nothing may be reported.
 */
#include <linux/delay.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/spinlock.h>

static char* plant = "nothing";
module_param(plant, charp, 0);
MODULE_PARM_DESC(plant, "nothing, inversion (two locks in both orders), sleep (below a spin lock)");

static DEFINE_MUTEX(first);
static DEFINE_MUTEX(second);
static DEFINE_SPINLOCK(spin);

static void take(struct mutex* outer, struct mutex* inner) {
  mutex_lock(outer);
  mutex_lock(inner);
  mutex_unlock(inner);
  mutex_unlock(outer);
}

static int __init planted_init(void) {
  take(&first, &second);
  if (!strcmp(plant, "inversion")) take(&second, &first);
  spin_lock(&spin);
  if (!strcmp(plant, "sleep")) msleep(1);
  spin_unlock(&spin);
  return 0;
}

static void __exit planted_exit(void) {}

module_init(planted_init);
module_exit(planted_exit);
MODULE_DESCRIPTION("defects for a debug kernel to find");
MODULE_LICENSE("GPL");

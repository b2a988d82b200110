// A small disk of the rig's own, a tmpfs that only root may mount, and the fault that fills it: what is written meanwhile is refused, and
// goes on when there is room again.
import { spawnSync } from "node:child_process";
import { mkdtempSync, rmSync, statfsSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { atEnd } from "../../src/demo/clean-up.ts";
import type { Fault } from "../../src/torture/strikes.ts";

const MOST_FULL_MS = 800;

/** Null: it could not be mounted, for the reason. */
export function mountSmallDisk(megabytes: number): { readonly folder: string; readonly fault: Fault } | string {
  const folder = mkdtempSync(join(tmpdir(), "outlive-disk-"));
  const mount = spawnSync("mount", ["-t", "tmpfs", "-o", `size=${megabytes}m`, "tmpfs", folder], { encoding: "utf8" });
  if (mount.status !== 0) {
    rmSync(folder, { recursive: true });
    return `full disk: a small one could not be mounted (${mount.error?.message ?? mount.stderr.trim()}); only root may`;
  }
  atEnd(() => {
    spawnSync("umount", ["-l", folder]);
    rmSync(folder, { recursive: true, force: true });
  });
  const resize = (size: string): boolean => spawnSync("mount", ["-o", `remount,size=${size}`, folder]).status === 0;
  return {
    folder,
    fault: {
      name: "fill the disk",
      weight: 4,
      aftermathMs: 1_000,
      async strike(chance, signal) {
        // As small as what is on it: full at once, whatever its size, and no memory is taken for that. Refused if it grew meanwhile.
        for (let spare = 0; spare < 64; spare++) {
          const { blocks, bavail, bsize } = statfsSync(folder);
          if (resize(String((blocks - bavail + spare) * bsize))) break;
        }
        await pause(chance.whole(100, MOST_FULL_MS), undefined, { signal }).catch(() => {});
        resize(`${megabytes}m`);
      },
    },
  };
}

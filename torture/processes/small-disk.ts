// A small disk of the rig's own, a tmpfs that only root may mount, and the fault that fills it: what is written meanwhile is refused, and
// goes on when there is room again.
import { spawnSync } from "node:child_process";
import { mkdtempSync, rmSync, statfsSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { atEnd } from "../../src/demo/clean-up.ts";
import type { Fault } from "../../src/torture/strikes.ts";

export const FILL = "fill the disk";
const MOST_FULL_MS = 800;

export interface SmallDisk {
  /** Anybody may write into it. */
  readonly folder: string;
  /** Full at once, whatever its size. */
  fill(): void;
  /** There is room again. */
  free(): void;
}

/** A text: it could not be mounted, for this reason. */
export function mountSmallDisk(megabytes: number): SmallDisk | string {
  const folder = mkdtempSync(join(tmpdir(), "outlive-disk-"));
  const mount = spawnSync("mount", ["-t", "tmpfs", "-o", `size=${megabytes}m,mode=1777`, "tmpfs", folder], {
    encoding: "utf8",
  });
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
    fill() {
      // As small as what is on it, so that no memory is taken for it. Refused if it grew meanwhile.
      for (let spare = 0; spare < 64; spare++) {
        const { blocks, bavail, bsize } = statfsSync(folder);
        if (resize(String((blocks - bavail + spare) * bsize))) return;
      }
    },
    free: () => void resize(`${megabytes}m`),
  };
}

/** For a store that is a file on it. */
export function fillingDisk(disk: SmallDisk): Fault {
  return {
    name: FILL,
    weight: 4,
    aftermathMs: 1_000,
    async strike(chance, signal) {
      disk.fill();
      await pause(chance.whole(100, MOST_FULL_MS), undefined, { signal }).catch(() => {});
      disk.free();
    },
  };
}

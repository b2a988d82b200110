// A small disk of the rig's own, a tmpfs that only root may mount, and the fault that fills it: what is written meanwhile is refused, and
// goes on when there is room again.
import { spawnSync } from "node:child_process";
import { mkdtempSync, rmSync, statfsSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { atEnd } from "../../../src/torture/run.ts";
import { type Fault, NotDone } from "../processes/fault-schedule.ts";

export const FILL = "fill the disk";
export const FILL_KEY = "fillDisk";
const MOST_FULL_MS = 800;
/** Blocks that may be left on a disk that is called full, and how often it is tried. */
const MOST_SPARE = 64;

export interface SmallDisk {
  /** Anybody may write into it. */
  readonly folder: string;
  /** Full at once, whatever its size. Throws `NotDone` if it is not. */
  fill(): void;
  /** There is room again. */
  free(): void;
}

/** A file system whose size can be changed. */
export interface Volume {
  readonly folder: string;
  /** In blocks. */
  usage(): { readonly blocks: number; readonly bavail: number; readonly bsize: number };
  /** In bytes, or with a unit; false: refused. */
  resize(size: string): boolean;
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
  const volume: Volume = {
    folder,
    usage: () => statfsSync(folder),
    resize: (size) => spawnSync("mount", ["-o", `remount,size=${size}`, folder]).status === 0,
  };
  return smallDisk(volume, megabytes);
}

export function smallDisk(volume: Volume, megabytes: number): SmallDisk {
  return {
    folder: volume.folder,
    fill() {
      // As small as what is on it, so that no memory is taken for it. Refused if it grew meanwhile; not full if something went.
      for (let spare = 0; spare < MOST_SPARE; spare++) {
        const { blocks, bavail, bsize } = volume.usage();
        if (volume.resize(String((blocks - bavail + spare) * bsize)) && volume.usage().bavail <= MOST_SPARE) return;
      }
      throw new NotDone(`it could not be made as small as what is on it, in ${MOST_SPARE} tries`);
    },
    free() {
      if (!volume.resize(`${megabytes}m`))
        throw new Error(`The disk at ${volume.folder} could not be given room again.`);
    },
  };
}

/** However the filling and the body end, there is room again. */
export async function whileFull(disk: SmallDisk, body: () => Promise<void>): Promise<void> {
  try {
    disk.fill();
    await body();
  } finally {
    disk.free();
  }
}

/** For a store that is a file on it. */
export function fillingDisk(disk: SmallDisk): Fault {
  return {
    key: FILL_KEY,
    name: FILL,
    aftermathMs: 1_000,
    strike: (chance, signal) =>
      whileFull(disk, () => pause(chance.whole(100, MOST_FULL_MS), undefined, { signal }).catch(() => {})),
  };
}

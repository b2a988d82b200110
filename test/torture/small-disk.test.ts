// The disk that is filled: full is full, and a filling that did not happen does not count.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { describe, it } from "node:test";
import { fillingDisk, mountSmallDisk, smallDisk, type Volume } from "../../proof/torture/faults/small-disk.ts";
import { type FaultContext, NotDone } from "../../proof/torture/processes/fault-schedule.ts";
import { Chance } from "../../src/torture/killer.ts";

const BLOCK = 4_096;
const MEGABYTES = 1;

/** A volume of 1 MB in a variable, with 100 blocks on it. */
class FakeVolume implements Volume {
  readonly folder = "nowhere";
  blocks = (MEGABYTES * 2 ** 20) / BLOCK;
  used = 100;
  readonly sizes: string[] = [];
  /** What becomes of it before it is asked to change. */
  meanwhile: () => void = () => {};

  usage(): ReturnType<Volume["usage"]> {
    return { blocks: this.blocks, bavail: this.blocks - this.used, bsize: BLOCK };
  }

  resize(size: string): boolean {
    this.meanwhile();
    this.sizes.push(size);
    const blocks = size === `${MEGABYTES}m` ? (MEGABYTES * 2 ** 20) / BLOCK : Number(size) / BLOCK;
    if (blocks < this.used) return false;
    this.blocks = blocks;
    return true;
  }
}

const struck = (volume: Volume): Promise<void> =>
  fillingDisk(smallDisk(volume, MEGABYTES)).strike(new Chance(1), AbortSignal.abort(), {} as FaultContext);

describe("a small disk", () => {
  it("is full when it is as small as what is on it, also if that grows meanwhile, and has room again", () => {
    const volume = new FakeVolume();
    let grows = 3;
    volume.meanwhile = () => void (grows-- > 0 && volume.used++);
    const disk = smallDisk(volume, MEGABYTES);
    disk.fill();
    assert.ok(volume.usage().bavail <= 4, `${volume.usage().bavail} blocks are left`);
    disk.free();
    assert.equal(volume.usage().blocks, 256);
  });

  it("that can't be made so small is not filled, says so, and has room again", async () => {
    const volume = new FakeVolume();
    volume.meanwhile = () => void volume.used++;
    volume.used = 10;
    const resize = volume.resize.bind(volume);
    volume.resize = (size) => resize(size) && size === `${MEGABYTES}m`;
    await assert.rejects(struck(volume), NotDone);
    assert.equal(volume.sizes.at(-1), `${MEGABYTES}m`);
  });

  it("on which there is room all the same was not filled", async () => {
    const volume = new FakeVolume();
    const asBefore = volume.usage();
    volume.usage = () => asBefore;
    await assert.rejects(struck(volume), NotDone);
  });

  it("that gets no room again ends the run", async () => {
    const volume = new FakeVolume();
    volume.resize = () => false;
    await assert.rejects(struck(volume), /could not be given room again/);
  });

  it("refuses what is written while it is full, and takes it afterwards", (t) => {
    const disk = mountSmallDisk(4);
    if (typeof disk === "string") return t.skip(disk);
    t.after(() => {
      spawnSync("umount", ["-l", disk.folder]);
      rmSync(disk.folder, { recursive: true, force: true });
    });
    const write = (name: string): void => writeFileSync(join(disk.folder, name), Buffer.alloc(2 ** 20));
    write("before");
    disk.fill();
    assert.throws(() => write("meanwhile"), { code: "ENOSPC" });
    disk.free();
    write("after");
  });
});

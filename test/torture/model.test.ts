// The parts of the rig that must be right for any verdict to mean anything: reading a trace, and the disk that forgets.
import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { SeededRandom } from "../../proof/sim/world/random.ts";
import { applied, Disk, type DiskChange, type Fate } from "../../proof/torture/power-loss/disk.ts";
import { drawFate, NOTHING_UNSYNCED } from "../../proof/torture/power-loss/fate.ts";
import { parseTrace, textsOf } from "../../proof/torture/trace.ts";

const hex = (text: string): string =>
  [...Buffer.from(text)].map((byte) => `\\x${byte.toString(16).padStart(2, "0")}`).join("");

describe("a trace", () => {
  it("is read call by call, in the order in which they ended, each with its place when it began", () => {
    const calls = parseTrace(
      [
        `7 fsync(3<${hex("/d/a")}> <unfinished ...>`,
        `8 pwrite64(4<${hex("/d/a")}>, "${hex("new")}", 3, 512) = 3`,
        `7 <... fsync resumed>) = 0`,
        `8 unlink("${hex("/d/b")}") = -1 ENOENT (No such file or directory)`,
        `8 +++ exited with 0 +++`,
        ``,
      ].join("\n"),
    );
    assert.deepEqual(
      calls.map(({ name, began, ended, file, result }) => [name, began, ended, file, result]),
      [
        ["pwrite64", 2, 2, "/d/a", 3],
        ["fsync", 1, 3, "/d/a", 0],
        ["unlink", 4, 4, undefined, -1],
      ],
    );
    assert.equal(textsOf(calls[0]!)[0]!.toString(), "new");
  });

  it("leaves out a call whose process was killed in it, and knows a file without a name", () => {
    const calls = parseTrace(`7 pwrite64(3<${hex("/d/a")}>, "", 0, 0) = ?\n7 fsync(3<${hex("/d/a")}>(deleted)) = 0\n`);
    assert.deepEqual(
      calls.map(({ name, file }) => [name, file]),
      [["fsync", undefined]],
    );
  });

  it("is refused if a text was cut short or a line is not understood", () => {
    const [cut] = parseTrace(`7 pwrite64(3<${hex("/d/a")}>, "${hex("x")}"..., 900, 0) = 900\n`);
    assert.throws(() => textsOf(cut!), /cut the text/);
    assert.throws(() => parseTrace("strace: something went wrong\n"), /not understood/);
    assert.throws(() => parseTrace("7 <... fsync resumed>) = 0\n"), /never began/);
  });
});

describe("a disk that loses power", () => {
  const write = (path: string, offset: number, text: string, at: number): DiskChange => ({
    is: "write",
    path,
    offset,
    bytes: Buffer.from(text),
    at,
  });
  const disk = (...changes: readonly DiskChange[]): Disk => {
    const made = new Disk(new Map([["a", Buffer.from("old")]]));
    for (const change of changes) made.apply(change);
    return made;
  };
  const left = (made: Disk, fate: Fate = NOTHING_UNSYNCED): Record<string, string> =>
    Object.fromEntries([...made.lose(fate)].map(([path, bytes]) => [path, bytes.toString()]));

  it("keeps what was synced and forgets what was not", () => {
    const made = disk(write("a", 0, "new", 1), { is: "sync", path: "a", since: 2 }, write("a", 0, "newer", 3));
    assert.deepEqual(left(made), { a: "new" });
    assert.equal(made.everything().get("a")!.toString(), "newer");
    assert.ok(made.isExposed);
  });

  it("does not count a write as synced that ended only after the sync had begun", () => {
    assert.deepEqual(left(disk(write("a", 0, "new", 5), { is: "sync", path: "a", since: 4 })), { a: "old" });
  });

  it("forgets a new file, however often it was synced, until its folder is", () => {
    const made = disk({ is: "create", path: "b" }, write("b", 0, "b", 1), { is: "sync", path: "b", since: 2 });
    assert.deepEqual(left(made), { a: "old" });
    made.apply({ is: "sync-names", folder: "" });
    assert.deepEqual(left(made), { a: "old", b: "b" });
    assert.ok(!made.isExposed);
  });

  it("brings a removed file back until its folder is synced, and never a later change of names without an earlier one", () => {
    const made = disk({ is: "remove", path: "a" }, { is: "create", path: "a" });
    assert.deepEqual(left(made), { a: "old" });
    assert.deepEqual(left(made, { ...NOTHING_UNSYNCED, names: () => 1 }), {});
    assert.deepEqual(left(made, { ...NOTHING_UNSYNCED, names: (count) => count }), { a: "" });
  });

  it("reads zeros where a file was cut and grew again", () => {
    const cut = { is: "truncate", path: "a", size: 1, at: 1 } as const;
    const grown = { is: "write", path: "a", offset: 4, bytes: Buffer.from("x"), at: 2 } as const;
    assert.deepEqual([...applied(Buffer.from("old"), [cut, grown])], [111, 0, 0, 0, 120]);
  });

  it("touches nothing but what was not synced, whatever its fate", () => {
    for (let seed = 0; seed < 300; seed++) {
      const made = disk();
      const synced = Buffer.alloc(4_000, "s");
      made.apply({ is: "write", path: "a", offset: 0, bytes: synced, at: 1 });
      made.apply({ is: "sync", path: "a", since: 2 });
      for (let n = 0; n < 4; n++)
        made.apply({ is: "write", path: "a", offset: 1_000 + n * 700, bytes: Buffer.alloc(700, "u"), at: 3 + n });
      const bytes = made.lose(drawFate(new SeededRandom(`${seed}`))).get("a")!;
      assert.ok(bytes.subarray(0, 1_000).equals(synced.subarray(0, 1_000)), `seed ${seed}`);
      assert.ok(
        bytes.subarray(1_000, 3_800).every((byte) => byte === 115 || byte === 117),
        `seed ${seed}`,
      );
      assert.ok(bytes.subarray(3_800, 4_000).equals(synced.subarray(3_800, 4_000)), `seed ${seed}`);
    }
  });
});

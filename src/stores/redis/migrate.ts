// The layout of a Redis store as deploy scripts list it. There is one so far, and the first process that opens a store begins it, or gives it to a store
// that an older version made: nothing has to be run before.
import { createHash } from "node:crypto";
import { ErrorCode, OutliveError } from "../../job/errors.ts";
import { systemClock, systemRandom } from "../../platform/clock.ts";
import type { StoreMigrations } from "../backend.ts";
import type { RedisAddress } from "./address.ts";
import { Connection, SCHEMA_VERSION, tagOf } from "./connection.ts";
import { connect } from "./driver.ts";
import { openingError } from "./errors.ts";
import { SLOT } from "./lua/plain.ts";

const CHECKSUM = createHash("sha256").update(`layout ${SCHEMA_VERSION} ${SLOT}`).digest("hex");

/** Only here are keys looked for by their names: no worker may run meanwhile. */
async function removeKeys({ wire: at, name }: RedisAddress): Promise<void> {
  const wire = await connect(at);
  try {
    let cursor = "0";
    do {
      const scan = ["SCAN", cursor, "MATCH", `${tagOf(name)}*`, "COUNT", "1000"];
      const [next, keys] = (await wire.call(scan, 5_000)) as [string, string[]];
      if (keys.length > 0) await wire.call(["UNLINK", ...keys], 5_000);
      cursor = next;
    } while (cursor !== "0");
  } finally {
    wire.close();
  }
}

export function layoutOf(address: RedisAddress): StoreMigrations {
  const { name, shown } = address;
  const storedSchema = async (): Promise<string | null> => {
    const wire = await connect(address.wire);
    try {
      return (await wire.call(["HGET", `${tagOf(name)}meta`, "schema"], 5_000)) as string | null;
    } finally {
      wire.close();
    }
  };
  return {
    title: `Store ${name} on ${shown}`,
    place: { store: name },
    note: "The first process that opens the store makes its layout.",
    async list() {
      const schema = await storedSchema().catch((thrown: unknown) => {
        throw openingError(shown, thrown);
      });
      const applied = schema !== null && Number(schema) >= SCHEMA_VERSION;
      return [{ number: 1, name: "layout", applied, checksum: CHECKSUM, storedChecksum: applied ? CHECKSUM : null }];
    },
    async up() {
      if (Number((await storedSchema()) ?? 0) >= SCHEMA_VERSION) return [];
      const connection = new Connection({ address, random: systemRandom, clock: systemClock });
      try {
        await connection.identity();
      } finally {
        await connection.close();
      }
      return [1];
    },
    async down({ force = false }) {
      if (!force)
        throw new OutliveError(
          ErrorCode.optionInvalid,
          `Rolling back the only layout of the Redis store ${name} removes the whole store.`,
          "Stop all workers, and pass --force if that is what you want.",
        );
      await removeKeys(address);
      return [1];
    },
  };
}

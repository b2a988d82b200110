// A session whose end comes in the same packet as its greeting, as a process that was frozen meanwhile reads it. A server of a few bytes stands for
// PostgreSQL: the real one can't be made to send both at once.
import assert from "node:assert/strict";
import { createServer, type AddressInfo, type Socket } from "node:net";
import { test } from "node:test";
import pg from "pg";
import { Connection } from "../../src/stores/postgres/connection.ts";

const message = (type: string, body: Buffer): Buffer => {
  const head = Buffer.alloc(5);
  head.write(type, 0, "latin1");
  head.writeInt32BE(body.length + 4, 1);
  return Buffer.concat([head, body]);
};
const AUTHENTICATED = message("R", Buffer.alloc(4));
const READY = message("Z", Buffer.from("I"));
const ENDED = message(
  "E",
  Buffer.from("SFATAL\0VFATAL\0C57P01\0Mterminating connection due to administrator command\0\0"),
);

for (const whose of ["our own", "the user's"])
  test(`a session of ${whose} pool that is ended with its greeting is an error of its statement, and does not end the process`, async (t) => {
    const server = createServer((socket: Socket) => {
      socket.on("error", () => {});
      socket.once("data", () => socket.write(Buffer.concat([AUTHENTICATED, READY, ENDED])));
    });
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    t.after(() => server.close());
    const url = `postgres://nobody@127.0.0.1:${(server.address() as AddressInfo).port}/none`;
    const pool = whose === "our own" ? undefined : new pg.Pool({ connectionString: url });
    pool?.on("error", () => {});
    const connection = await Connection.open({ schema: "outlive", url, ...(pool && { pool }) });
    await assert.rejects(connection.rows("SELECT 1"), /not queryable|terminat/i);
    await connection.close();
    await pool?.end();
  });

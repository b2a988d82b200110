// RabbitMQ as tests ask for it: one broker for the whole run, and names of kinds that no other test has. It is started by the first that asks
// (scripts/test.mjs, over a socket). A test that kills a broker makes one of its own.
import { randomBytes } from "node:crypto";
import { connect } from "node:net";
import type { TestContext } from "node:test";
import amqplib from "amqplib";
import { RabbitmqServer } from "../../proof/servers/rabbitmq-server.ts";
import { untilTrue } from "./processes.ts";

export { RabbitmqServer };

let asked: Promise<string> | undefined;

/** The address of the shared broker. */
export function sharedRabbitmq(): Promise<string> {
  asked ??= ask();
  return asked;
}

async function ask(): Promise<string> {
  const given = process.env["OUTLIVE_TEST_RABBITMQ_URL"];
  if (given) return given;
  const socket = process.env["OUTLIVE_TEST_RABBITMQ_SOCKET"];
  if (socket) return answerOf(socket);
  // Not under `npm test`: this process has its own, and takes it along.
  const server = await RabbitmqServer.create();
  process.once("exit", () => server.destroyNow());
  return server.url();
}

function answerOf(socket: string): Promise<string> {
  return new Promise((resolve, reject) => {
    let answer = "";
    const connection = connect(socket);
    connection.setEncoding("utf8");
    connection.on("data", (text: string) => (answer += text));
    connection.once("error", reject);
    connection.once("end", () => {
      if (answer.startsWith("amqp")) resolve(answer);
      else reject(new Error(answer));
    });
  });
}

/** A name of a kind or queue that no other test has. */
export function freshKind(): string {
  return `t${randomBytes(6).toString("hex")}`;
}

/** Until both queues of a collection are deleted. Looking for one that is not there ends the channel. */
export async function untilGone(t: TestContext, id: string): Promise<void> {
  const probe = await amqplib.connect(await sharedRabbitmq());
  t.after(() => probe.close().catch(() => {}));
  for (const queue of ["header", "payload"])
    await untilTrue(
      async () => {
        const channel = await probe.createChannel();
        channel.on("error", () => {});
        const found = await channel.checkQueue(`transaction-${id}-${queue}`).catch((thrown: Error) => thrown);
        if (!(found instanceof Error)) await channel.close();
        return found;
      },
      (found) => found instanceof Error && /NOT_FOUND/.test(found.message),
      `the ${queue} queue of ${id} is deleted`,
    );
}

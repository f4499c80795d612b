// What a plugin has of a host that launched it: the handshake on standard input, whose end asks it to stop, and a log.
'use strict';

const path = require('node:path');
const grpc = require('@grpc/grpc-js');
const loader = require('@grpc/proto-loader');

const MAX_LINE = 64 * 1024;

// readHandshake returns what the host says, or null if no host launched this process. onEnd is called when the host asks to stop.
async function readHandshake(onEnd, env = process.env, input = process.stdin) {
  if (env.PATCHBAY_HANDSHAKE !== 'stdin') {
    return null;
  }
  const line = await readLine(input);
  const handshake = JSON.parse(line);
  if (handshake.version !== 1) {
    throw new Error(`the host's handshake has version ${handshake.version}, and this plugin knows version 1`);
  }
  if (!handshake.hostSocket || !handshake.ticket) {
    throw new Error("the host's handshake names no host socket or no ticket");
  }
  input.on('end', onEnd);
  input.on('error', onEnd);
  input.resume();
  return handshake;
}

function readLine(input) {
  return new Promise((resolve, reject) => {
    let read = Buffer.alloc(0);
    const done = (error, line) => {
      input.off('data', onData);
      input.off('end', onEnd);
      input.off('error', done);
      input.pause();
      error ? reject(error) : resolve(line);
    };
    const onEnd = () => done(new Error("standard input ended before the host's handshake"));
    const onData = (chunk) => {
      read = Buffer.concat([read, chunk]);
      const end = read.indexOf('\n');
      if (end >= 0) {
        done(null, read.subarray(0, end).toString('utf8'));
      } else if (read.length > MAX_LINE) {
        done(new Error(`standard input has no handshake within ${MAX_LINE} bytes`));
      }
    };
    input.on('data', onData);
    input.once('end', onEnd);
    input.once('error', done);
  });
}

// Log writes to the host that launched the plugin, over one stream, or to standard error as JSON lines.
class Log {
  constructor(handshake) {
    this.handshake = handshake;
    this.client = null;
    this.stream = null;
  }

  info(message) {
    this.#write(0, 'INFO', message);
  }

  warn(message) {
    this.#write(4, 'WARN', message);
  }

  #write(level, name, message) {
    if (this.handshake !== null && this.#open()) {
      this.stream.write({ records: [{ level, message }] });
    } else {
      console.error(JSON.stringify({ time: new Date().toISOString(), level: name, msg: message }));
    }
  }

  // open returns whether there is a stream. It is made by the first record; a host that is gone leaves standard error.
  #open() {
    if (this.client === null) {
      const { patchbay } = grpc.loadPackageDefinition(loader.loadSync(path.join(__dirname, '../proto/host.proto')));
      this.client = new patchbay.plugin.v1.Host('unix:' + this.handshake.hostSocket, grpc.credentials.createInsecure());
      const ticket = new grpc.Metadata();
      ticket.set('patchbay-ticket', this.handshake.ticket);
      this.closed = new Promise((resolve) => {
        this.stream = this.client.Log(ticket, () => {
          this.stream = null;
          resolve();
        });
      });
      this.stream.on('error', () => {}); // which the callback is told, too
    }
    return this.stream !== null;
  }

  // close delivers what was written, unless that takes longer than a moment.
  async close() {
    if (this.stream !== null) {
      this.stream.end();
      const timer = new Promise((resolve) => setTimeout(resolve, 500).unref());
      await Promise.race([this.closed, timer]);
    }
    this.client?.close();
  }
}

module.exports = { readHandshake, Log };

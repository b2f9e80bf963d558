"""diskferry.connect: asyncio, with many commands in flight, threads beside it, and cancelling."""

import asyncio
import os
import random
import socket
import threading
import unittest

import diskferry


class Asyncio(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        # Slow callbacks on a busy machine are not reported.
        asyncio.get_running_loop().slow_callback_duration = 60

    def setUp(self):
        serving = diskferry.serve("memory:8M")
        self.uri = serving.__enter__()
        self.addCleanup(serving.__exit__, None, None, None)

    async def test_commands_are_awaited(self):
        async with diskferry.connect(self.uri, contexts=("base:allocation",)) as disk:
            self.assertEqual(disk.size, 8 << 20)
            await disk.write(b"hello".ljust(4096), 0, fua=True)
            data = await disk.read(4096, 0)
            self.assertEqual(bytes(data[:5]), b"hello")
            buffer = bytearray(4096)
            await disk.readinto(buffer, 0)
            self.assertEqual(buffer, data)
            await disk.zero(4096, 0)
            await disk.trim(4096, 4096)
            if disk.handle.can_cache():
                await disk.cache(4096, 0)
            await disk.flush()
            status = await disk.block_status(8 << 20, 0)
            self.assertEqual(sum(length for length, _ in status["base:allocation"]), 8 << 20)
        with self.assertRaises(ValueError):
            await disk.read(512, 0)

    async def test_a_connection_may_be_awaited_without_a_with_statement(self):
        disk = await diskferry.connect(self.uri)
        self.assertEqual(len(await disk.read(512, 0)), 512)
        await disk.close()
        await disk.close()

    async def test_many_commands_are_in_flight_at_a_time(self):
        async with diskferry.connect(self.uri) as disk:
            await asyncio.gather(*(disk.write(bytes([n % 256]) * 4096, n * 4096) for n in range(2048)))
            read = await asyncio.gather(*(disk.read(4096, n * 4096) for n in range(2048)))
            for n, data in enumerate(read):
                self.assertEqual(data, bytes([n % 256]) * 4096)

    async def test_long_commands_do_not_hold_the_loop(self):
        async with diskferry.connect(self.uri) as disk:
            data = random.randbytes(4 << 20)
            await asyncio.gather(disk.write(data, 0), disk.write(data, 4 << 20))
            one, other = await asyncio.gather(disk.read(4 << 20, 0), disk.read(4 << 20, 4 << 20))
            self.assertEqual((one, other), (data, data))

    async def test_errors_are_raised_where_they_are_awaited(self):
        async with diskferry.connect(self.uri) as disk:
            with self.assertRaises(diskferry.nbd.Error) as caught:
                await disk.read(512, 8 << 20)
            self.assertEqual(caught.exception.errno, "EINVAL")
            # A command that was refused before it was sent gets no reply to wait for.
            disk.handle.set_strict_mode(0)
            results = await asyncio.gather(
                disk.read(512, 0), disk.read(512, 8 << 20), disk.read(512, 512), return_exceptions=True
            )
            self.assertEqual([type(r).__name__ for r in results], ["bytearray", "Error", "bytearray"])

    async def test_a_command_that_is_cancelled_leaves_the_others_alone(self):
        with diskferry.serve("pattern:8M", filters=["delay?rdelay=300ms"]) as uri:
            async with diskferry.connect(uri) as disk:
                tasks = [asyncio.create_task(disk.read(4096, n * 4096)) for n in range(32)]
                await asyncio.sleep(0.05)
                for task in tasks[::2]:
                    task.cancel()
                results = await asyncio.gather(*tasks, return_exceptions=True)
                for n, result in enumerate(results):
                    if n % 2 == 0:
                        self.assertIsInstance(result, asyncio.CancelledError)
                    else:
                        self.assertEqual(int.from_bytes(result[:8], "big"), n * 4096)
                with self.assertRaises(asyncio.TimeoutError):
                    await asyncio.wait_for(disk.read(512, 0), 0.01)

    async def test_close_ends_all_that_wait(self):
        """Those in flight get their replies, and those that wait for room an error; none waits for ever."""
        with diskferry.serve("memory:1M", filters=["delay?rdelay=200ms"]) as uri:
            disk = await diskferry.connect(uri)
            tasks = [asyncio.create_task(disk.read(512, 0)) for _ in range(4000)]
            # One turn of the loop starts them all.
            await asyncio.sleep(0)
            await disk.close()
            results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 120)
            kinds = [type(result) for result in results]
            self.assertEqual((kinds.count(bytearray), kinds.count(ValueError)), (1024, 4000 - 1024))

    async def test_commands_in_flight_fail_when_the_server_goes(self):
        serving = diskferry.serve("pattern:8M", filters=["delay?rdelay=60"])
        uri = serving.__enter__()
        disk = await diskferry.connect(uri)
        task = asyncio.create_task(disk.read(512, 0))
        await asyncio.sleep(0.05)
        # A connection that breaks: both directions are shut down.
        with socket.socket(fileno=os.dup(disk.handle.aio_get_fd())) as same:
            same.shutdown(socket.SHUT_RDWR)
        with self.assertRaises(diskferry.nbd.Error):
            await asyncio.wait_for(task, 60)
        await disk.close()
        await asyncio.get_running_loop().run_in_executor(None, serving.__exit__, None, None, None)

    async def test_a_thousand_interleavings_with_threads_beside(self):
        """Tasks and threads over one server, with cancels at random: a read returns only bytes that were written."""
        seed = int(os.environ.get("BLACKBOX_SEED", random.randrange(1 << 32)))
        print(f"seed {seed}", end=" ", flush=True)
        stop, failures = threading.Event(), []

        def beside(number):
            try:
                h = diskferry.nbd.NBD()
                h.connect_uri(self.uri)
                at = (4 << 20) + number * 65536
                turn = 0
                while not stop.is_set():
                    turn = (turn + 1) % 256
                    h.pwrite(bytes([turn]) * 512, at)
                    assert h.pread(512, at) == bytes([turn]) * 512
            except BaseException as e:  # noqa: B036
                failures.append(repr(e))

        threads = [threading.Thread(target=beside, args=(n,)) for n in range(3)]
        for thread in threads:
            thread.start()
        try:
            async with diskferry.connect(self.uri) as disk:

                async def one(number):
                    dice = random.Random(seed + number)
                    at = number % 64 * 4096
                    async with locks[number % 64]:
                        data = dice.randbytes(4096)
                        await disk.write(data, at)
                        if dice.random() < 0.5:
                            await asyncio.sleep(0)
                        assert await disk.read(4096, at) == data, number

                locks = [asyncio.Lock() for _ in range(64)]
                tasks = [asyncio.create_task(one(n)) for n in range(1000)]
                dice = random.Random(seed)
                for task in dice.sample(tasks, 100):
                    await asyncio.sleep(0)
                    task.cancel()
                for result in await asyncio.gather(*tasks, return_exceptions=True):
                    if not isinstance(result, asyncio.CancelledError):
                        self.assertIsNone(result)
        finally:
            stop.set()
            for thread in threads:
                thread.join(60)
        self.assertEqual(failures, [])


if __name__ == "__main__":
    unittest.main()

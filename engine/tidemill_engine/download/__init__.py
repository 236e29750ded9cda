"""Downloads a model's files before the engine starts: `tidemill-engine download URI`.

Runs in a container of its own, which alone has the credentials. Knows three services (a model hub, S3, Google
Cloud Storage), one way to fetch a file, and one layout on the volume. Refuses to load anything: the engine
does.

    source      which files a URI means                         pure
    selection   which of what is there the engine can read      pure
    guard       which addresses may be connected to             pure but for the resolver
    http        requests whose redirects are looked at one by one
    hub, s3, gcs   one service each: list, and the request for one file
    fetch       one file: resumed, retried, verified
    store       where files lie on the volume, and the lock
    progress    how far it is, told on the admin port
    run         the order of it all
"""
